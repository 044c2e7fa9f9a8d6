# SPDX-License-Identifier: Apache-2.0
"""The machine, as far as files describe it, and where its libraries are."""

import ctypes
import glob
import os
import platform
import resource
import shutil
import site
import subprocess
import sys
import tempfile

# ldconfig does not search the first two.
DRIVER_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
)


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


def meminfo_count(key):
    return meminfo(key) // 1024


def memory_limit():
    """Bytes, of the control groups that this process is in, version 2 or 1; None: no limit."""
    limits, paths = [], []
    for line in read("/proc/self/cgroup").splitlines():
        number, controllers, group = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        base, name = ("", "memory.max") if number == "0" else ("/memory", "memory.limit_in_bytes")
        while True:  # a parent's limit applies too; where the path is the host's, only the last exists
            paths.append(os.path.join("/sys/fs/cgroup" + base + group, name))
            if group in ("", "/"):
                break
            group = os.path.dirname(group)
    for path in paths:
        text = read(path)
        if text.isdigit() and int(text) < 1 << 60:
            limits.append(int(text))
    return min(limits, default=None)


def available_memory():
    """Bytes that pages of files may take."""
    available, limit = meminfo("MemAvailable"), memory_limit()
    return available if limit is None else min(available, limit)


def _cpu():
    names = [line.split(":")[1].strip() for line in read("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _output(command, seconds=20, lines=80, env=None):
    """A program's output as lines, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, text=True, errors="replace", env=env)
    except (OSError, subprocess.TimeoutExpired) as e:
        return [str(e)]
    return (done.stdout + done.stderr).splitlines()[-lines:]


def _nvidia_smi(*arguments, **limits):
    program = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/local/nvidia/bin:/usr/lib/wsl/lib")
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path()}
    return _output([program, *arguments], env=environment, **limits) if program else ["no nvidia-smi"]


def _driver():
    version = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")[:1]
    return version[0] if version and version[0][:1].isdigit() else read("/sys/module/nvidia/version", "unknown")


def _files(pattern):
    def describe(path):
        mode = os.stat(path)
        return f"{path} {mode.st_mode & 0o7777:o} {mode.st_uid}:{mode.st_gid}"

    return [describe(path) for path in sorted(glob.glob(pattern)) if os.path.exists(path)]


def surroundings(cudarts, binaries, environment):
    """What explains why CUDA is missing, or why a program does not start; collected before either is tried."""
    wanted = ("CUDA", "NVIDIA", "LD_", "PATH", "TMPDIR", "OUT")
    drivers = [path for folder in DRIVER_FOLDERS for path in glob.glob(folder + "/libcuda.so*")]
    limits = ("RLIMIT_MEMLOCK", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_AS")
    return {
        "user": os.geteuid(),
        "environment": {key: value for key, value in sorted(environment.items()) if key.startswith(wanted)},
        "libc": " ".join(platform.libc_ver()),
        "system": read("/etc/os-release").splitlines()[:2],
        "devices": _files("/dev/nvidia*") + _files("/dev/dxg"),
        "drivers": [f"{path} > {os.path.realpath(path)}" for path in drivers],
        "runtimes": cudarts,
        "nvidia_smi": _nvidia_smi(),
        "kernel_module": read("/proc/driver/nvidia/version", "unknown").splitlines(),
        "missing_libraries": missing_libraries(binaries, environment),
        "versions": [_version(path, environment) for path in binaries if "streamer" in os.path.basename(path) and not path.endswith(".so.0")],
        "cgroup_memory": memory_limit(),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "shm": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
    }


def _version(path, environment):
    """A library of another system may be found and yet need another C library."""
    return " ".join(_output([path, "--version"], env=environment)) or f"{path} prints nothing"


def missing_libraries(binaries, environment):
    """Libraries that the dynamic loader does not find, or finds too old."""
    lines = []
    for path in binaries:
        said = _output(["ldd", path], lines=500, env=environment)
        lines += [f"{os.path.basename(path)}: {line.strip()}" for line in said if "not found" in line]
    return lines


def faults():
    """The kernel log's lines about the driver (an Xid names the engine and the fault), and about processes that were
    killed for lack of memory."""
    words = ("NVRM", "Xid", "Out of memory", "out of memory", "segfault")
    return [line for line in _output(["dmesg"], lines=100000) if any(word in line for word in words)][-20:]


def _link(bus):
    """PCIe: the link's current and greatest speed and width; an idle GPU may have lowered them."""
    folder = f"/sys/bus/pci/devices/{bus}/"
    keys = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "numa_node")
    return {key: read(folder + key, "unknown") for key in keys}


def sandbox():
    """"gVisor", or None: a kernel of its own, whose figures are not those of Linux."""
    version = read("/proc/version")
    if "gVisor" in version or version.startswith("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"):
        return "gVisor"
    return "gVisor" if any("gVisor" in line for line in _output(["dmesg"], lines=1000)) else None


def describe(gpu, folder):
    disk = shutil.disk_usage(folder)
    return {
        **gpu,
        "driver": _driver(),
        "link": _link(gpu.get("pci", "")),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_total": meminfo("MemTotal"),
        "memory_available": meminfo("MemAvailable"),
        "disk_free": disk.free,
        "dirty_ratio": read("/proc/sys/vm/dirty_ratio", "unknown"),
        "kernel": platform.release(),
        "sandbox": sandbox(),
        "thp": read("/sys/kernel/mm/transparent_hugepage/enabled", "unknown"),
        "thp_shmem": read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "unknown"),
        "hugepages": read("/proc/sys/vm/nr_hugepages", "unknown"),
        "hugepages_overcommit": read("/proc/sys/vm/nr_overcommit_hugepages", "unknown"),
        "python": platform.python_version(),
    }


# ---- file systems


class Tmpfs:
    """A tmpfs of this script's own below `folder`, where root may mount one: /dev/shm may be small, and an ordinary
    user has no other."""

    def __init__(self, folder, size):
        self.path, self.mounted = tempfile.mkdtemp(prefix="tmpfs-", dir=folder), False
        os.chmod(self.path, 0o755)
        options = f"size={int(size)},mode=755,huge=never".encode()
        if os.geteuid() == 0:
            self.mounted = ctypes.CDLL(None).mount(b"tmpfs", self.path.encode(), b"tmpfs", ctypes.c_ulong(0), options) == 0
        if not self.mounted:
            os.rmdir(self.path)
            self.path = tempfile.mkdtemp(prefix="streamer-gpu-", dir="/dev/shm")
            os.chmod(self.path, 0o755)

    def remove(self):
        if self.mounted:
            ctypes.CDLL(None).umount2(self.path.encode(), 2)  # MNT_DETACH
        shutil.rmtree(self.path, ignore_errors=True)


# ---- settings of the kernel, changed for a time


class DirtyLimits:
    """Lets models be written at the speed of memory, where root may do that: by default the kernel slows a writer down
    once a fifth of the memory waits for the disk."""

    FOLDER = "/proc/sys/vm/"
    WANTED = {"dirty_ratio": "90", "dirty_background_ratio": "80"}
    ALL = ("dirty_ratio", "dirty_background_ratio", "dirty_bytes", "dirty_background_bytes")

    def __init__(self):
        self.before = {name: read(self.FOLDER + name) for name in self.ALL}
        for name, value in self.WANTED.items():
            self._write(name, value)

    def _write(self, name, value):
        try:
            with open(self.FOLDER + name, "w") as f:
                f.write(value)
        except OSError:
            pass

    def restore(self):
        for name, value in self.before.items():
            if value not in ("", "0"):  # of a ratio and its number of bytes, the one in use is not 0
                self._write(name, value)


class Pool:
    """So many bytes of huge pages set aside (vm.nr_hugepages) for as long as this lasts, where root may do that."""

    NAME = "/proc/sys/vm/nr_hugepages"

    def __init__(self, size):
        self.before = read(self.NAME)
        self.pages = size // (2 << 20)
        try:
            with open(self.NAME, "w") as f:
                f.write(str(int(self.before) + self.pages))
        except (OSError, ValueError):
            pass

    def complete(self):
        return meminfo_count("HugePages_Free") >= self.pages

    def restore(self):
        try:
            with open(self.NAME, "w") as f:
                f.write(self.before)
        except OSError:
            pass


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


def find_programs(script):
    """Where streamerd is: beside the folder of this script, as in a copied folder, or in the checkout's build."""
    copied = os.path.dirname(os.path.dirname(script))
    build = os.path.join(os.path.dirname(copied), "build")
    return next((folder for folder in (copied, build) if os.access(os.path.join(folder, "streamerd"), os.X_OK)), build)


def named_cudart(name, bin_folder):
    """A path, or the name of a file in one of the folders of the programs."""
    folders = ("", bin_folder, os.path.join(bin_folder, "..", "lib"))
    paths = [os.path.abspath(os.path.join(folder, name)) for folder in folders]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def find_cudarts(bin_folder):
    """Paths of libcudart, from the folders of the programs, toolkits and Python packages; the daemon gets one of them
    (cuda.library)."""
    packages = dict.fromkeys(site.getsitepackages() + [p for p in sys.path if p.endswith("-packages")])
    wheels = [os.path.join(folder, "nvidia") for folder in packages]
    folders = _search_path() + [bin_folder, os.path.join(bin_folder, "..", "lib")] + list(DRIVER_FOLDERS[2:4])
    folders += ["/usr/local/cuda/lib64"] + glob.glob("/usr/local/cuda-1[23]*/lib64")
    folders += [os.path.join(w, part, "lib") for w in wheels for part in ("cu13", "cuda_runtime")]
    found = [_first([name], folders) for name in ("libcudart.so.13", "libcudart.so.12")]
    return [path for path in found if path]


def library_path():
    """LD_LIBRARY_PATH for all children: containers put the driver where ldconfig does not search. Programs find their
    own libraries by run path, so that Python never loads them in place of its own."""
    return ":".join(_search_path() + [d for d in DRIVER_FOLDERS[:2] if os.path.exists(d + "/libcuda.so.1")])
