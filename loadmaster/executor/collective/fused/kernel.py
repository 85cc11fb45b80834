"""The kernel: its source, its build for the device at hand by NVRTC (which comes with torch), and its launch.

A launch is one structure passed by value; short programs travel in it. What changes from call to call is where input
and output are, so a call costs one foreign function call and no allocation.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from loadmaster.errors import LoadmasterError
from loadmaster.executor.collective.fused.table import MOST_RANKS, MOST_STREAMS, Protocol, Table

# Threads of a block, at most.
THREADS = 512
WARP = 32
INLINE_WORDS = 384
# Words of the failure that a kernel writes down.
FAILURE_WORDS = 9
_SOURCES = ("primitives.cuh", "interpreter.cuh")
_ELEMENTS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
SUMMABLE = tuple(_ELEMENTS)


class Launch(ctypes.Structure):
    """Mirrors ``Launch`` of ``interpreter.cuh``, which says what the fields are."""

    _fields_ = (
        ("input", ctypes.c_uint64),
        ("output", ctypes.c_uint64),
        ("words", ctypes.c_uint64),
        ("state", ctypes.c_uint64),
        ("failure", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
        ("flags_offset", ctypes.c_uint64),
        ("flags_bytes", ctypes.c_uint64),
        ("slots_offset", ctypes.c_uint64),
        ("slots_bytes", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("lanes", ctypes.c_int32),
        ("rounds", ctypes.c_int32),
        ("held_count", ctypes.c_int32),
        ("table", ctypes.c_int64),
        ("arenas", ctypes.c_uint64 * MOST_RANKS),
        ("shared", ctypes.c_uint64 * MOST_RANKS),
        ("begins", ctypes.c_uint32 * (MOST_STREAMS + 2)),
        ("held", ctypes.c_int64 * INLINE_WORDS),
    )


def launch_of(table: Table, rank: int, words: int, /, **fields: int) -> Launch:
    """Make a rank's launch, for all calls of a size; ``words``: address of its words on the device, if they do not fit
    in it. ``fields``: those of :class:`Launch` that depend on memory, but ``arenas`` and ``shared``."""
    launch = Launch(words=words, rank=rank, lanes=table.lanes, rounds=table.rounds, **fields)
    launch.begins[: len(table.begins[rank])] = table.begins[rank]
    if fits_inline(table, rank):
        launch.held_count = len(table.words[rank])
        launch.held[: launch.held_count] = table.words[rank].tolist()
    return launch


def fits_inline(table: Table, rank: int) -> bool:
    """Return whether the rank's words travel in the launch."""
    return len(table.words[rank]) <= INLINE_WORDS


def source() -> str:
    """The kernel's source: accesses, then the interpreter."""
    here = resources.files("loadmaster.executor.collective.fused")
    return "\n".join((here / name).read_text("utf-8") for name in _SOURCES)


def kernel_name(protocol: Protocol, dtype: torch.dtype | None) -> str:
    """Name of the kernel that adds up such elements; None: nothing is added up."""
    return f"{protocol}_{_ELEMENTS[dtype or torch.float32]}"


class Kernels:
    """The built kernels on one device."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)  # the device's primary context is there and current from here on
        major, minor = torch.cuda.get_device_capability(device)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        image = compiled(f"sm_{major}{minor}")
        with torch.cuda.device(device):
            self._expect(self._driver.cuModuleLoadData(ctypes.byref(self._module), image), "cuModuleLoadData")
        self._launch = self._driver.cuLaunchKernel
        self.enqueue_address = address_of(self._launch)
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count

    def function(self, name: str) -> ctypes.c_void_p:
        """Find one kernel by its name."""
        found = ctypes.c_void_p()
        self._expect(self._driver.cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()), name)
        return found

    def resident(self, function: ctypes.c_void_p, threads: int) -> int:
        """Count the blocks of so many threads that the device runs at once."""
        each = ctypes.c_int()
        status = self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(each), function, threads, ctypes.c_size_t(0)
        )
        self._expect(status, "cuOccupancyMaxActiveBlocksPerMultiprocessor")
        return each.value * self._multiprocessors

    def caller(self, function: ctypes.c_void_p, blocks: int, threads: int, launch: Launch) -> Callable[[int], None]:
        """Make a function that enqueues a kernel on a stream. The launch stays in place: fields may change."""
        # Whole numbers go as they are and pointers as objects made once: a call converts nothing but its stream.
        pointer = ctypes.c_void_p
        arguments = (pointer * 1)(ctypes.addressof(launch))
        given, on, held = pointer(ctypes.addressof(arguments)), pointer(), (launch, arguments)
        enqueue, expect = self._launch, self._expect

        def call(stream: int, _held: object = held) -> None:
            on.value = stream
            status = enqueue(function, blocks, 1, 1, threads, 1, 1, 0, on, given, None)
            if status:
                expect(status, "cuLaunchKernel")

        return call

    def _expect(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise LoadmasterError(f"{what} failed: {(text.value or b'unknown error').decode()}")


def address_of(function: Any) -> int:
    """Address at which a function of a library begins."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def compiled(architecture: str) -> bytes:
    """Compile the kernels to machine code. Raises LoadmasterError: no NVRTC, or it refuses the source; with its log."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    text = source().encode()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"fused.cu", 0, None, None):
        raise LoadmasterError("NVRTC made no program of the fused collectives.")
    given = (b"--gpu-architecture=" + architecture.encode(), b"--std=c++17")
    options = (ctypes.c_char_p * len(given))(*given)
    size = ctypes.c_size_t()
    if nvrtc.nvrtcCompileProgram(program, len(given), options):
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise LoadmasterError(f"NVRTC refuses the fused collectives for {architecture}:\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return image.raw


def _nvrtc() -> ctypes.CDLL:
    """Load the NVRTC library: where the loader finds it, next to torch, or in a toolkit."""
    major = (torch.version.cuda or "13").split(".")[0]
    packages = Path(torch.__file__).parent.parent / "nvidia"
    beside = sorted(str(path) for path in packages.glob("*/lib/libnvrtc.so.*") if "alt" not in path.name)
    for name in (f"libnvrtc.so.{major}", *beside, "/usr/local/cuda/lib64/libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise LoadmasterError(
        f"No libnvrtc.so.{major} was found. It comes with torch's CUDA wheels; else put it on LD_LIBRARY_PATH."
    )
