"""Makes empty CUDA libraries, so that PyTorch's wheel for CUDA runs on the CPU alone.

Usage: torch_stubs.py TORCH_LIB_DIR OUT_DIR. The wheel (540 MB) does not load without
libraries that have 2 GB more. Every function of the stubs returns 100, which is
cudaErrorNoDevice. Needs gcc, nm and readelf.
"""

import pathlib
import re
import subprocess
import sys

OF_CUDA = re.compile(
    r"_*(cu[A-Z_]|cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvshmem"
    r"|cuFile|cupti|nvJit|nvtx|nvml)"
)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols(library, which):
    lines = output("nm", "-D", "--without-symbol-versions", which, library).splitlines()
    return {line.split()[-1] for line in lines if line.split()}


def main(lib, out):
    out.mkdir(exist_ok=True)
    libraries = [path for path in lib.glob("*.so*") if path.is_file()]
    names = {path.name for path in libraries}
    needed, defined, sonames, versions = set(), set(), set(), {}
    for library in libraries:
        needed |= symbols(library, "--undefined-only")
        defined |= symbols(library, "--defined-only")
        sonames |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", library)))
        file = None
        for line in output("readelf", "-VW", library).splitlines():
            if of_file := re.search(r"File: (\S+)", line):
                file = of_file[1]
            elif (version := re.search(r"Name: (\S+)\s+Flags", line)) and file:
                versions.setdefault(file, set()).add(version[1])
    stubs = sorted(name for name in needed - defined if OF_CUDA.match(name))
    source = out / "stubs.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in stubs))
    for soname in sonames - names:
        if not re.match(r"lib(cu|nv|nccl)", soname):
            continue
        command = ["gcc", "-shared", "-fPIC", "-w", "-nostdlib", f"-Wl,-soname,{soname}"]
        known = sorted(versions.get(soname, ()))
        if known:
            script = out / "versions"
            first = f"{known[0]} {{ global: *; }};\n"
            script.write_text(first + "".join(f"{name} {{ }};\n" for name in known[1:]))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", out / soname, source], check=True)
    print(len(stubs), "functions")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
