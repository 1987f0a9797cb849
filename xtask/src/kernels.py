"""Compiles a CUDA source to PTX and writes that to standard output: kernels.py SOURCE [OPTION …].

NVRTC is the one of the wheel in this interpreter's environment. What tools alone read is left out of the PTX, and names
of labels are cut short; both take a third of its bytes. Which version and which options are right is not decided here.
"""

import ctypes
import importlib.util
import pathlib
import re
import sys


def library():
    """NVRTC, which brings what it loads itself in the same folder."""
    package = importlib.util.find_spec("nvidia.cuda_nvrtc")
    folder = pathlib.Path(next(iter(package.submodule_search_locations))) / "lib"
    (path,) = folder.glob("libnvrtc.so.*")
    return ctypes.CDLL(str(path))


def text(nvrtc, program, what):
    """A text that NVRTC has of a program: its log or its PTX."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def compiled(source, options):
    """The PTX of a source. A warning is an error."""
    nvrtc, program = library(), ctypes.c_void_p()
    # The name becomes part of symbols, so it is the same wherever the file lies.
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    if made != 0:
        sys.exit(f"NVRTC has made no program: error {made}")
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), words)
    log = text(nvrtc, program, "ProgramLog").strip()
    if failed or log:
        sys.exit(f"{source}: error {failed}\n{log}")
    return text(nvrtc, program, "PTX")


def shortened(ptx):
    """The same program without comments, indentation and the variables of NVRTC's own header, with short labels."""
    ptx = re.sub(r"//.*", "", ptx)
    ptx = re.sub(r"[ \t]+", " ", ptx).replace(", ", ",")
    # Labels are known within their kernel only, so what tells kernels apart is not needed.
    ptx = re.sub(r"\$L__BB\d+_", "$", ptx)
    lines = (line.strip() for line in ptx.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith(".global "))


if __name__ == "__main__":
    sys.stdout.write(shortened(compiled(pathlib.Path(sys.argv[1]), sys.argv[2:])))
