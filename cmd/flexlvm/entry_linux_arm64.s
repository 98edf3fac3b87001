#include "textflag.h"

// func entry()
//
// See entry_linux_amd64.s.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0-0
	MOVD 0(RSP), R0
	ADD  $16, RSP, R1
	ADD  R0<<3, R1               // the first variable
	MOVD $0x3d47554245444f47, R2 // "GODEBUG="
	MOVD $'_', R3

variable:
	MOVD.P 8(R1), R4
	CBZ    R4, done
	MOVD   (R4), R5
	CMP    R2, R5
	BNE    variable
	MOVB   R3, (R4)
	B      variable

done:
	B _rt0_arm64_linux(SB)
