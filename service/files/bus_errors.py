"""What happens where a mapped file has lost bytes that a lookup reads: zeros and a mark, instead of the process's end.

The kernel answers a read of a page behind a file's end, or of one that the disk does not give, with SIGBUS. The handler
here looks whether the address lies in a map that asked for this. If so it marks the map as damaged, puts zeros in place
of the whole map, and lets the reader go on; whoever reads must look at the mark before it gives its answer away. The
mark is there before the zeros are, so no zero is read without it. Any other bus error goes on to what handled it before
(faulthandler, or the process's end).

Nothing but system calls and memory is used in it, so it may run in any thread at any place. It is machine code made of
the text below, some 10 ms at the first map: Python's own handlers run between bytecodes, which a reader that can not go
on never reaches.

Source: siginfo_t and struct sigaction of include/uapi/asm-generic/siginfo.h, arch/x86 (Linux 6.18) and glibc's
bits/sigaction.h; signal-safety(7) and mmap(2).
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import threading
from typing import Any, ClassVar

import llvmlite.binding as llvm
import numpy as np

# So many maps at a time; a map that finds no place here is as any other map.
MAX_MAPS = 1 << 14
# Columns of the table that the handler reads, one row per map.
_BEGIN, _END, _MARK_AT = 0, 1, 2
_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000

# PROT_READ | PROT_WRITE, for maps of changed rows are written to; MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS; siginfo's
# si_code at 8, si_addr at 16. A bus error that a process sends (si_code <= 0) is none of a map's.
_HANDLER = """
target triple = "{triple}"
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, ptr, ptr)
declare i32 @raise(i32)

define void @on_bus_error(i32 %number, ptr %info, ptr %context) {{
entry:
  %code_at = getelementptr i8, ptr %info, i64 8
  %code = load i32, ptr %code_at
  %address_at = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %address_at
  %count_at = inttoptr i64 {count_at} to ptr
  %count = load atomic i64, ptr %count_at acquire, align 8
  %is_sent = icmp sle i32 %code, 0
  br i1 %is_sent, label %sent, label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %go_on ]
  %is_over = icmp sge i64 %i, %count
  br i1 %is_over, label %not_ours, label %look
look:
  %row_offset = mul i64 %i, 24
  %row = add i64 {table_at}, %row_offset
  %begin_at = inttoptr i64 %row to ptr
  %begin = load atomic i64, ptr %begin_at acquire, align 8
  %end_place = add i64 %row, 8
  %end_at = inttoptr i64 %end_place to ptr
  %end = load atomic i64, ptr %end_at acquire, align 8
  %is_behind = icmp uge i64 %address, %begin
  %is_before = icmp ult i64 %address, %end
  %is_in = and i1 %is_behind, %is_before
  br i1 %is_in, label %ours, label %go_on
go_on:
  %next = add i64 %i, 1
  br label %head
ours:
  %mark_place = add i64 %row, 16
  %mark_at_at = inttoptr i64 %mark_place to ptr
  %mark_place_2 = load i64, ptr %mark_at_at
  %mark_at = inttoptr i64 %mark_place_2 to ptr
  store atomic i64 1, ptr %mark_at seq_cst, align 8
  %begin_ptr = inttoptr i64 %begin to ptr
  %length = sub i64 %end, %begin
  %mapped = call ptr @mmap(ptr %begin_ptr, i64 %length, i32 3, i32 50, i32 -1, i64 0)
  %mapped_at = ptrtoint ptr %mapped to i64
  %failed = icmp eq i64 %mapped_at, -1
  br i1 %failed, label %not_ours, label %done
sent:
  %reset = call i32 @sigaction(i32 %number, ptr inttoptr (i64 {before_at} to ptr), ptr null)
  %raised = call i32 @raise(i32 %number)
  br label %done
not_ours:
  %reset_2 = call i32 @sigaction(i32 %number, ptr inttoptr (i64 {before_at} to ptr), ptr null)
  br label %done
done:
  ret void
}}
"""


class _SigAction(ctypes.Structure):
    # As glibc's sigaction takes it: handler, mask, flags, restorer.
    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


class BusErrors:
    """The process's maps that survive. Concurrency: any thread.

    Everything in it lives as long as the process: the handler may run at any time.
    """

    _kept: ClassVar[list[BusErrors]] = []

    def __init__(self) -> None:
        # Pages that nobody writes take no memory. The first word counts the rows in use, with holes.
        self._memory = mmap.mmap(-1, 8 * (1 + 3 * MAX_MAPS))
        words = np.frombuffer(self._memory, np.int64)
        self._table_at = words.ctypes.data + 8
        self._words = memoryview(self._memory).cast("q")
        self._free: list[int] = []
        self._changing = threading.Lock()
        self._before = _SigAction()
        self._engine = self._install(words.ctypes.data)
        self._kept.append(self)

    def _install(self, count_at: int) -> Any:
        libc = ctypes.CDLL(None, use_errno=True)
        number = signal.SIGBUS
        engine = _compile(
            _HANDLER.format(
                triple=llvm.get_process_triple(),
                count_at=count_at,
                table_at=self._table_at,
                before_at=ctypes.addressof(self._before),
            )
        )
        action = _SigAction(handler=engine.get_function_address("on_bus_error"), flags=_SA_SIGINFO | _SA_ONSTACK)
        if libc.sigaction(int(number), ctypes.byref(action), ctypes.byref(self._before)) != 0:
            raise OSError(ctypes.get_errno(), "the bus error handler can not be installed")
        return engine

    def add(self, address: int, num_bytes: int, mark_at: int) -> int | None:
        """Lets a map survive.

        Args:
          mark_at: where 1 is put, as int64, once it is damaged; good until remove.

        Returns:
          What remove takes; None where there are too many maps.
        """
        with self._changing:
            place = self._free.pop() if self._free else self._words[0]
            if place >= MAX_MAPS:
                return None
            row = 1 + 3 * place
            self._words[row + _MARK_AT] = mark_at
            self._words[row + _BEGIN] = address
            # Last, for with it the row holds.
            self._words[row + _END] = address + num_bytes
            self._words[0] = max(self._words[0], place + 1)
        return place

    def remove(self, place: int) -> None:
        """Forgets a map; before it is unmapped, for its addresses may then be another's."""
        self._words[1 + 3 * place + _END] = 0
        # No lock: a collection may call this in a thread that holds it. A list's append is atomic.
        self._free.append(place)


def _compile(text: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    return engine
