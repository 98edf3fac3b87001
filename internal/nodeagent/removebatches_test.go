package nodeagent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Each job is the letter of its group, a capital if it evicts an orphan, and followed by ' if the volume is doomed.
// Groups p and q are proven.
func TestBatches(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		jobs string
		want []string
	}{
		"none":                      {},
		"unproven":                  {"uuuu", []string{"u", "uuu"}},
		"unproven, a single one":    {"u", []string{"u"}},
		"proven":                    {"pppp", []string{"pppp"}},
		"too many for one batch":    {strings.Repeat("p", maxBatch+3), []string{strings.Repeat("p", maxBatch), "ppp"}},
		"too many, unproven":        {strings.Repeat("u", maxBatch+3), []string{"u", strings.Repeat("u", maxBatch), "uu"}},
		"two groups":                {"ppqq", []string{"pp", "qq"}},
		"two groups, both unproven": {"uuuvvv", []string{"u", "uu", "v", "vv"}},
		"groups in turns":           {"pqpq", []string{"p", "q", "p", "q"}},
		"unproven after proven":     {"ppuu", []string{"pp", "u", "u"}},
		"an orphan in the middle":   {"ppPpp", []string{"pp", "P", "pp"}},
		"an orphan first, unproven": {"Uuu", []string{"U", "uu"}},
		"orphans":                   {"PPP", []string{"P", "P", "P"}},
		"doomed first":              {"p'p'pp", []string{"p'p'", "pp"}},
		"doomed first, unproven":    {"u'u'uu", []string{"u'", "u'", "uu"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var jobs []job
			for _, group := range tt.jobs {
				if group == '\'' {
					jobs[len(jobs)-1].volume.State = volume.Doomed
					continue
				}
				one := job{volume: inventory.Volume{GroupUUID: strings.ToLower(string(group)), UUID: string(group)}}
				if one.volume.UUID != one.volume.GroupUUID {
					one.eviction = &eviction.Eviction{Reason: eviction.ReasonOrphan}
				}
				jobs = append(jobs, one)
			}
			var got []string
			for _, batch := range batches(jobs, func(group string) bool { return group == "p" || group == "q" }) {
				together := ""
				for _, one := range batch {
					together += one.volume.UUID
					if one.volume.State == volume.Doomed {
						together += "'"
					}
				}
				got = append(got, together)
			}
			require.Equal(t, tt.want, got)
		})
	}
}
