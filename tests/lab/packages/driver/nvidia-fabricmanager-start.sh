#!/bin/sh
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Starts and stops the fabric manager by the options that NVIDIA's script takes. A board whose switches are behind
# network adapters wants ibstat and the subnet manager, which has nothing to do here.
set -eu

mode='' config='' pid_file=''
while [ $# -gt 0 ]; do
    case "$1" in
    --mode) mode=$2 ;;
    --fm-config-file) config=$2 ;;
    --fm-pid-file) pid_file=$2 ;;
    --nvlsm-config-file | --nvlsm-pid-file) ;;
    *)
        echo "$0: unknown option $1" >&2
        exit 2
        ;;
    esac
    shift 2
done

case "$mode" in
start)
    if grep -qs SW_MNG /sys/bus/pci/devices/*/vpd; then
        command -v ibstat >/dev/null || { echo "$0: ibstat is not installed" >&2; exit 1; }
        echo "Detected NVL5+ system"
        /opt/nvidia/nvlsm/sbin/nvlsm
    fi
    exec /usr/bin/nv-fabricmanager -c "$config"
    ;;
stop)
    [ ! -s "$pid_file" ] || kill "$(cat "$pid_file")"
    ;;
*)
    echo "$0: --mode is '$mode', wanted start or stop" >&2
    exit 2
    ;;
esac
