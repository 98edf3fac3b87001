package volume

import (
	"math"
	"math/bits"
)

// Percent returns the share of part in whole in percent, rounded down; 0 if part or whole is not positive. A hundred
// times the size of a large cluster overflows 64 bits.
func Percent(part, whole Bytes) int {
	if part <= 0 || whole <= 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(part), 100)
	if high >= uint64(whole) {
		return math.MaxInt
	}
	quotient, _ := bits.Div64(high, low, uint64(whole))
	return int(min(quotient, math.MaxInt))
}
