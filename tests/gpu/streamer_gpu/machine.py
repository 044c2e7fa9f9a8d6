# SPDX-License-Identifier: Apache-2.0
"""What the run is on, as far as files tell, and where its libraries are."""

import glob
import os
import platform
import shutil
import site
import subprocess

DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")


def read(path, default=""):
    try:
        with open(path) as f:
            return f.read().strip()
    except OSError:
        return default


def meminfo(key):
    for line in read("/proc/meminfo").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu():
    names = [line.split(":")[1].strip() for line in read("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _nvidia_smi():
    if not shutil.which("nvidia-smi"):
        return read("/sys/module/nvidia/version", "unknown")
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, timeout=20, text=True)
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    return done.stdout.strip().split("\n")[0] or "unknown"


def _link(bus):
    """PCIe: what the link runs at, and what it could; an idle GPU may have turned it down."""
    folder = f"/sys/bus/pci/devices/{bus}/"
    keys = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "numa_node")
    return {key: read(folder + key, "unknown") for key in keys}


def describe(gpu, folder):
    disk = shutil.disk_usage(folder)
    return {
        **gpu,
        "driver": _nvidia_smi(),
        "link": _link(gpu.get("pci", "")),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_total": meminfo("MemTotal"),
        "memory_available": meminfo("MemAvailable"),
        "disk_free": disk.free,
        "kernel": platform.release(),
        "thp": read("/sys/kernel/mm/transparent_hugepage/enabled", "unknown"),
        "thp_shmem": read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "unknown"),
        "hugepages": read("/proc/sys/vm/nr_hugepages", "unknown"),
        "hugepages_overcommit": read("/proc/sys/vm/nr_overcommit_hugepages", "unknown"),
        "python": platform.python_version(),
    }


# ---- libraries


def _first(names, folders):
    for name in names:
        for folder in folders:
            for path in sorted(glob.glob(os.path.join(folder, name))):
                return os.path.abspath(path)
    return None


def _search_path():
    return [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


def find_client(bin_folder):
    beside = [bin_folder, os.path.join(bin_folder, "..", "lib")]
    return _first(["libstreamer-client.so.0"], beside + _search_path())


def find_cudarts():
    """Where toolkits and Python packages have put it; the daemon is told the path of one."""
    wheels = [os.path.join(folder, "nvidia") for folder in site.getsitepackages()]
    folders = _search_path() + list(DRIVER_FOLDERS[1:3])
    folders += ["/usr/local/cuda/lib64"] + glob.glob("/usr/local/cuda-1[23]*/lib64")
    folders += [os.path.join(w, part, "lib") for w in wheels for part in ("cu13", "cuda_runtime")]
    found = [_first([name], folders) for name in ("libcudart.so.13", "libcudart.so.12")]
    return [path for path in found if path]


def library_path():
    """LD_LIBRARY_PATH for all children: containers put the driver where ldconfig does not look."""
    return ":".join(_search_path() + [d for d in DRIVER_FOLDERS[:1] if os.path.exists(d + "/libcuda.so.1")])
