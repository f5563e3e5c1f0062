"""Keeps a candidate's process from signalling, slowing or reading the judge: a filter in the system.

A worker runs under the same user as its judge, so the system would let it send SIGKILL
there. A seccomp filter, installed before the candidate is loaded and kept by all of its
threads and children, answers such calls with EPERM. Nothing leaves the worker's session and
process group either: ``setsid`` and ``setpgid`` say that they did it and do nothing, so the
judge stops and counts everything that a candidate starts. Linux on x86-64 and aarch64.

Not covered: another process that the candidate guesses, and ``/proc/PID/mem`` of the judge
where both run as root; both are the lint's and the user's to prevent.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from ctypes import c_uint8, c_uint16, c_uint32
from dataclasses import dataclass

__all__ = ["guard"]

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_FLAG_ALL_THREADS = 1
# Offsets in the kernel's struct seccomp_data; the low half of an argument comes first.
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM is 1
_PRETEND = 0x00050000  # the call is not made, and returns 0
# x86-64 kernels take the calls of the x32 interface under numbers from here on.
_OTHER_INTERFACE = 0x40000000


@dataclass(frozen=True)
class _Machine:
    """What the kernel calls this architecture, and its numbers of the calls that name a process.

    ``calls`` gives for each the position of the argument that is the process id. ``leaving`` are
    setsid and setpgid; ``priority`` is setpriority, which is left for single processes alone.
    """

    arch: int
    seccomp: int
    calls: dict[int, int]
    leaving: tuple[int, int]
    priority: int


# kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, prlimit64, process_vm_readv,
# process_vm_writev, pidfd_open, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr;
# ptrace's and setpriority's process is the second argument.
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        317,
        {
            **dict.fromkeys((62, 200, 234, 129, 297, 302, 310, 311, 434, 142, 144, 203, 314), 0),
            **dict.fromkeys((101, 141), 1),
        },
        (112, 109),
        141,
    ),
    "aarch64": _Machine(
        0xC00000B7,
        277,
        {
            **dict.fromkeys((129, 130, 131, 138, 240, 261, 270, 271, 434, 118, 119, 122, 274), 0),
            **dict.fromkeys((117, 140), 1),
        },
        (157, 154),
        140,
    ),
}
# Takes a descriptor that may be an open /proc/PID, so no process id can be compared.
_PIDFD_SEND_SIGNAL = 424


class _Instruction(ctypes.Structure):
    _fields_ = [("code", c_uint16), ("yes", c_uint8), ("no", c_uint8), ("k", c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction))]


def guard(judge: int) -> str:
    """Refuse this process every call that would signal, slow, trace or read process ``judge``, or leave it.

    Holds for all threads and children, for good. Returns why it could not be done, or ``""``.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or not sys.platform.startswith("linux"):
        return f"no filter for {sys.platform} on {platform.machine()}; supported: {', '.join(_MACHINES)}"
    targets = [judge, -1, -os.getpgid(judge)]
    program = _program(machine, [target & 0xFFFFFFFF for target in targets])
    instructions = (_Instruction * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return f"prctl: {os.strerror(ctypes.get_errno())}"
    whole = ctypes.byref(_Program(len(program), instructions))
    arguments = (ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_FLAG_ALL_THREADS), whole)
    if libc.syscall(ctypes.c_long(machine.seccomp), *arguments):
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return ""


def _program(machine: _Machine, targets: list[int]) -> list[_Instruction]:
    """The filter. Jumps count instructions to skip, so each call's block is its own."""
    step = _Instruction
    refuse, allow = step(_RETURN, 0, 0, _REFUSE), step(_RETURN, 0, 0, _ALLOW)
    program = [
        step(_LOAD, 0, 0, _ARCH),
        step(_IF_EQUAL, 1, 0, machine.arch),
        refuse,
        step(_LOAD, 0, 0, _NUMBER),
        step(_IF_AT_LEAST, 0, 1, _OTHER_INTERFACE),
        refuse,
        step(_IF_EQUAL, 0, 1, _PIDFD_SEND_SIGNAL),
        refuse,
    ]
    for number in machine.leaving:
        program += [step(_IF_EQUAL, 0, 1, number), step(_RETURN, 0, 0, _PRETEND)]
    # Its first argument is 0 for a process; groups and users have the judge among them.
    block = [step(_LOAD, 0, 0, _ARGUMENTS), step(_IF_EQUAL, 1, 0, 0), refuse, step(_LOAD, 0, 0, _NUMBER)]
    program += [step(_IF_EQUAL, 0, len(block), machine.priority), *block]
    for number, position in machine.calls.items():
        block = [step(_LOAD, 0, 0, _ARGUMENTS + 8 * position)]
        for target in targets:
            block += [step(_IF_EQUAL, 0, 1, target), refuse]
        block.append(allow)
        program += [step(_IF_EQUAL, 0, len(block), number), *block]
    return [*program, allow]
