package pv

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The API server's limits on names. They are repeated here because the driver needs them too, and links
// none of Kubernetes' packages so that it starts fast.
const (
	maxLabelValue = 63
	maxObjectName = 253
	// nodeHashLength is the length of the hash in the label value of a node with too long a name.
	nodeHashLength = 16
)

// NodeLabelValue returns the value of LabelNode for a node. A node's name may have 253 characters and a
// label's value 63, so a longer name is cut and a hash of the full name is appended. The hash only has
// to distinguish the nodes of one cluster, whose names are not chosen to collide; a cryptographic hash
// would slow the driver's start.
func NodeLabelValue(node string) string {
	if isLabelValue(node) {
		return node
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(node))
	hash := fmt.Sprintf("%0*x", nodeHashLength, sum.Sum64())
	head := node[:min(len(node), maxLabelValue-len(hash)-1)]
	return strings.TrimRight(head, "-.") + "-" + hash
}

// IsNodeName reports whether the value of LabelNode is the node's full name, not a shortened one.
func IsNodeName(value string) bool {
	cut := len(value)-1-nodeHashLength >= 0 && value[len(value)-1-nodeHashLength] == '-' && isHex(value[len(value)-nodeHashLength:])
	return value != "" && !cut
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

// isLabelValue reports whether s may be the value of a label: empty, or up to 63
// letters, digits, hyphens, underscores and dots, with a letter or digit at
// either end.
func isLabelValue(s string) bool {
	if s == "" {
		return true
	}
	for i := range len(s) {
		if !alphanumeric(s[i]) && !strings.ContainsRune("-_.", rune(s[i])) {
			return false
		}
	}
	return len(s) <= maxLabelValue && alphanumeric(s[0]) && alphanumeric(s[len(s)-1])
}

// ParseLabelValue checks a label value. The error is a *volume.FieldError.
func ParseLabelValue(field, s string) (string, error) {
	if s == "" || !isLabelValue(s) {
		return "", &volume.FieldError{Field: field, Value: s, Reason: "cannot be the value of a label; it has up to 63 letters, digits, hyphens, underscores and dots, and a letter or digit at either end"}
	}
	return s, nil
}

// ParseObjectName checks an object name by the rule of most kinds, such as PersistentVolumes, claims,
// classes and nodes: an RFC 1123 subdomain. The error is a *volume.FieldError.
func ParseObjectName(field, s string) (string, error) {
	good := len(s) <= maxObjectName
	for part := range strings.SplitSeq(s, ".") {
		good = good && isNamePart(part)
	}
	if !good {
		return "", &volume.FieldError{Field: field, Value: s, Reason: "cannot be the name of an object in Kubernetes; it has up to 253 lower-case letters, digits, hyphens and dots, and a letter or digit at either end and beside each dot"}
	}
	return s, nil
}

func isNamePart(s string) bool {
	for i := range len(s) {
		if s[i] != '-' && (!alphanumeric(s[i]) || s[i] >= 'A' && s[i] <= 'Z') {
			return false
		}
	}
	return s != "" && s[0] != '-' && s[len(s)-1] != '-'
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
