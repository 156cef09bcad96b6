module gpuops.nvidia/lab/images/pause

go 1.24.0
