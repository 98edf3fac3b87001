package volume

import (
	"strconv"
	"strings"
)

// A Ratio is how many times its size a thin pool may promise to volumes, in thousandths. 0 means 1:
// the pool is never overcommitted.
type Ratio int

const (
	ratioOne = 1000
	// maxRatio rejects a typo, and keeps the arithmetic far from overflow.
	maxRatio = 100
)

// ParseRatio parses a ratio: 1 or more, with at most three decimals, such as 1.5. The
// error is a *FieldError.
func ParseRatio(field, s string) (Ratio, error) {
	whole, part, pointed := strings.Cut(s, ".")
	n, err := parseCount(field, whole, maxRatio)
	if whole == "0" || err == nil && n < 1 {
		return 0, invalid(field, s, "is less than 1: volumes would be promised less than they were asked for; give 1 or more, as 1.5")
	}
	if err != nil || pointed && (part == "" || len(part) > 3 || strings.Trim(part, "0123456789") != "") {
		return 0, invalid(field, s, "is not a ratio; give 1 to %d, with at most three decimals, as 1.5", maxRatio)
	}
	thousandths, _ := strconv.Atoi((part + "000")[:3])
	r := Ratio(int(n)*ratioOne + thousandths)
	if r > maxRatio*ratioOne {
		return 0, invalid(field, s, "is more than %d, the most that is supported", maxRatio)
	}
	return r, nil
}

// Of returns the charge for a volume of this size, rounded up.
func (r Ratio) Of(size Bytes) Bytes {
	n := Bytes(max(int(r), ratioOne))
	return size/n*ratioOne + (size%n*ratioOne+n-1)/n
}

// Over reports whether the ratio allows overcommitment.
func (r Ratio) Over() bool { return r > ratioOne }

// String formats the ratio as ParseRatio reads it.
func (r Ratio) String() string {
	n := max(int(r), ratioOne)
	text := strconv.Itoa(n / ratioOne)
	if part := n % ratioOne; part != 0 {
		text += "." + strings.TrimRight(strconv.Itoa(ratioOne + part)[1:], "0")
	}
	return text
}
