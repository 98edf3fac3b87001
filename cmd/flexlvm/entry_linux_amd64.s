#include "textflag.h"

// func entry()
//
// The kernel has left on the stack: argc, as many pointers to arguments and a nil, then
// pointers to the variables of the environment and a nil. The text of each ends with a
// zero byte, and below the stack's end lie eight more, so eight bytes can be read of any.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ 0(SP), AX
	LEAQ 16(SP)(AX*8), BX        // the first variable
	MOVQ $0x3d47554245444f47, DX // "GODEBUG=" as the number that it is in memory

variable:
	MOVQ  (BX), CX
	TESTQ CX, CX
	JZ    done
	ADDQ  $8, BX
	CMPQ  (CX), DX
	JNE   variable
	MOVB  $'_', (CX) // _ODEBUG= means nothing to anybody
	JMP   variable

done:
	JMP _rt0_amd64_linux(SB)
