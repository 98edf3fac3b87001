package volume

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// IOLimits bounds what a pod may read from and write to a volume per second; 0 means no limit.
type IOLimits struct {
	ReadBps   Bytes
	WriteBps  Bytes
	ReadIOPS  int64
	WriteIOPS int64
}

const (
	// minBps is one block per second; less would stop a file system rather than slow it down.
	minBps = Block
	// maxBps and maxIOPS are far above any disk's. The kernel keeps operations in 32 bits, and a
	// limit that does not fit would read back different, and be set again and again.
	maxBps  = TiB
	maxIOPS = 1_000_000_000
)

// unlimited is the kernel's word for no limit.
const unlimited = "max"

// Names of the limits in the parameters of a StorageClass and of a VolumeAttributesClass.
const (
	ParameterReadBps   = "readBps"
	ParameterWriteBps  = "writeBps"
	ParameterReadIOPS  = "readIops"
	ParameterWriteIOPS = "writeIops"
)

// ParseBps parses a rate in bytes per second: a whole number with an optional Kubernetes
// suffix. The error is a *FieldError.
func ParseBps(field, s string) (Bytes, error) {
	digits := strings.TrimRight(s, "KMGTik")
	unit, known := bpsUnits[s[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 63)
	if !known || err != nil || strings.HasPrefix(digits, "+") {
		return 0, invalid(field, s, "is not a rate; give bytes per second as a whole number with one of k, M, G, T, Ki, Mi, Gi, Ti or none, such as 10Mi")
	}
	if n > math.MaxInt64/uint64(unit) || Bytes(n)*unit > maxBps {
		return 0, invalid(field, s, "is more than %s a second, the most that is supported; leave it out for no limit", maxBps)
	}
	if b := Bytes(n) * unit; b >= minBps {
		return b, nil
	}
	return 0, invalid(field, s, "is less than %d bytes per second, which would stall all I/O; raise it, or leave it out for no limit", int64(minBps))
}

var bpsUnits = map[string]Bytes{
	"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": KiB, "Mi": MiB, "Gi": GiB, "Ti": TiB,
}

// ParseIOPS parses a rate in operations per second. The error is a *FieldError.
func ParseIOPS(field, s string) (int64, error) { return parseCount(field, s, maxIOPS) }

// ioWords are the kernel's words for the limits, in the order in which io.max shows
// them.
var ioWords = []string{"rbps", "wbps", "riops", "wiops"}

// IsZero reports whether there is no limit.
func (l IOLimits) IsZero() bool { return l == IOLimits{} }

// String formats the limits as in io.max, always all four.
func (l IOLimits) String() string {
	var b strings.Builder
	for i, n := range l.numbers() {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(ioWords[i])
		b.WriteByte('=')
		if *n == 0 {
			b.WriteString(unlimited)
		} else {
			b.WriteString(strconv.FormatInt(*n, 10))
		}
	}
	return b.String()
}

// numbers returns pointers to the limits in the order of ioWords.
func (l *IOLimits) numbers() []*int64 {
	return []*int64{(*int64)(&l.ReadBps), (*int64)(&l.WriteBps), &l.ReadIOPS, &l.WriteIOPS}
}

// ParseIOLimits parses what String writes. Keys may come in any order, and an omitted key means no
// limit. An unknown or repeated key, or a value that no class could have, is an error. The error is
// a *FieldError.
func ParseIOLimits(field, s string) (IOLimits, error) {
	var l IOLimits
	seen := map[string]bool{}
	for _, assignment := range strings.Fields(s) {
		word, value, _ := strings.Cut(assignment, "=")
		i := slices.Index(ioWords, word)
		switch {
		case i < 0:
			return IOLimits{}, invalid(field, s, "holds %q; give words such as %q", clip(assignment), IOLimits{WriteBps: MiB}.String())
		case seen[word]:
			return IOLimits{}, invalid(field, s, "holds %s twice; leave one out", word)
		}
		seen[word] = true
		if value == unlimited {
			continue
		}
		n, err := parseIOWord(field+": "+word, value, strings.HasSuffix(word, "bps"))
		if err != nil {
			return IOLimits{}, err
		}
		*l.numbers()[i] = n
	}
	return l, nil
}

func parseIOWord(field, value string, bytes bool) (int64, error) {
	if !bytes {
		return ParseIOPS(field, value)
	}
	n, err := parseCount(field, value, int64(maxBps))
	if err == nil && Bytes(n) < minBps {
		return 0, invalid(field, value, "is less than %d bytes per second, which would stall all I/O; raise it, or give %s", int64(minBps), unlimited)
	}
	return n, err
}
