package pv_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestNodeLabelValue(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := map[string]struct{ node, want string }{
		"short":         {"node-1", "node-1"},
		"dots":          {"node-1.rack-2.example.org", "node-1.rack-2.example.org"},
		"63 characters": {long, long},
		"64 characters": {long + "b", strings.Repeat("a", 46) + "-db007549f35eb6cc"},
		"cut at a dot":  {strings.Repeat("a", 45) + "." + strings.Repeat("b", 40), strings.Repeat("a", 45) + "-19c895d6a485f53a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, pv.NodeLabelValue(tt.node))
		})
	}
}

func TestNodeLabelValueOfLongNames(t *testing.T) {
	seen := map[string]string{}
	for i := range 190 {
		node := strings.Repeat("n", 63) + "." + strings.Repeat("x", i%60+1) + strings.Repeat(".y", i/60+1)
		require.Empty(t, validation.IsDNS1123Subdomain(node))
		value := pv.NodeLabelValue(node)
		require.Empty(t, validation.IsValidLabelValue(value), value)
		require.NotContains(t, seen, value, "two nodes share a label")
		seen[value] = node
	}
}

// words returns names at the limits of the rules, and many random ones of the few characters that the rules
// distinguish.
func words() []string {
	all := []string{"", "a", "-", ".", "_", "a.b", "a..b", "a-.b", "a.-b", "-a", "a-", "A", "a_b", "a b", "é", "a\n", "a\x00", "\xff"}
	for _, n := range []int{62, 63, 64, 252, 253, 254} {
		all = append(all, strings.Repeat("a", n), strings.Repeat("a", n-1)+"-")
	}
	const letters = "aZ0-._ /"
	random := rand.New(rand.NewPCG(1, 2)) // the same words in every run
	for range 5000 {
		b := make([]byte, random.IntN(6)+1)
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		all = append(all, string(b))
	}
	return all
}

// TestRulesAreKubernetes checks that this package's copy of the rules agrees with the API server's.
func TestRulesAreKubernetes(t *testing.T) {
	for _, s := range words() {
		_, err := pv.ParseObjectName("--claim", s)
		require.Equal(t, len(validation.IsDNS1123Subdomain(s)) == 0, err == nil, "object name %q", s)
		_, err = pv.ParseLabelValue("--hostname", s)
		require.Equal(t, s != "" && len(validation.IsValidLabelValue(s)) == 0, err == nil, "label value %q", s)
		require.Equal(t, len(validation.IsValidLabelValue(s)) == 0, pv.NodeLabelValue(s) == s, "label of node %q", s)
	}
	var field *volume.FieldError
	_, err := pv.ParseObjectName("--claim", "My_Data")
	require.ErrorAs(t, err, &field)
	require.ErrorContains(t, err, `--claim "My_Data": cannot be the name of an object`)
	_, err = pv.ParseLabelValue("--hostname", "a/b")
	require.ErrorAs(t, err, &field)
}
