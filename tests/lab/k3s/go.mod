module gpuops.nvidia/lab/k3s

go 1.24
