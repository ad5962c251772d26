// SPDX-License-Identifier: BSD-4-Clause

#include "textflag.h"

// A struct sigaction of zeros: SIG_DFL.
GLOBL defaultAction<>(SB), RODATA, $32
DATA defaultAction<>+0(SB)/8, $0
DATA defaultAction<>+8(SB)/8, $0
DATA defaultAction<>+16(SB)/8, $0
DATA defaultAction<>+24(SB)/8, $0

// func forkEntry(entry, nr uintptr) (pid int)
TEXT ·forkEntry(SB), NOSPLIT, $0-24
	MOVQ entry+0(FP), R12
	MOVQ nr+8(FP), R13
	MOVQ $56, AX                     // clone(SIGCHLD, 0, 0, 0, 0): a plain fork
	MOVQ $17, DI
	XORQ SI, SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	SYSCALL
	TESTQ AX, AX
	JEQ  child
	MOVQ AX, pid+16(FP)
	RET

child:
	MOVQ $13, AX                     // rt_sigaction(SIGSEGV, SIG_DFL): int 0x80 faults where the kernel lacks it
	MOVQ $11, DI
	LEAQ defaultAction<>(SB), SI
	XORQ DX, DX
	MOVQ $8, R10
	SYSCALL
	MOVQ R13, AX
	XORQ BX, BX
	XORQ CX, CX
	XORQ DX, DX
	XORQ SI, SI
	XORQ DI, DI
	CMPQ R12, $0
	JNE  x32
	INT  $0x80
	JMP  back

x32:
	ORQ  $0x40000000, AX
	SYSCALL

back:
	MOVQ $1, DI
	CMPL AX, $-38                    // int 0x80 answers in 32 bits
	JNE  leave
	MOVQ $2, DI

leave:
	MOVQ $231, AX                    // exit_group
	SYSCALL
	INT  $3
