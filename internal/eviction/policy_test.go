package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
)

func TestDefaultPolicy(t *testing.T) {
	p := eviction.DefaultPolicy()
	require.NoError(t, p.Validate())
	require.Equal(t, eviction.Policy{HighPercent: 85, LowPercent: 80, MinAge: 2 * time.Minute, Headroom: eviction.HeadroomAuto, OrphanAge: 24 * time.Hour, OrphanShare: 10, ThinDataPercent: 80, ThinMetadataPercent: 80}, p)
}

func TestPolicyValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*eviction.Policy)
		want   []string // parts of the error; none for a valid policy
	}{
		"thin off":          {change: func(p *eviction.Policy) { p.ThinDataPercent, p.ThinMetadataPercent = 100, 100 }},
		"thin data":         {func(p *eviction.Policy) { p.ThinDataPercent = 0 }, []string{"--thin-data-watermark-percent 0"}},
		"thin metadata":     {func(p *eviction.Policy) { p.ThinMetadataPercent = 101 }, []string{"--thin-metadata-watermark-percent 101"}},
		"thresholds off":    {change: func(p *eviction.Policy) { p.HighPercent = 100 }},
		"all that there is": {change: func(p *eviction.Policy) { p.HighPercent, p.LowPercent = 1, 0 }},
		"no least age":      {change: func(p *eviction.Policy) { p.MinAge = 0 }},
		"expiring":          {change: func(p *eviction.Policy) { p.MaxAge = p.MinAge + 1 }},
		"orphans at once":   {change: func(p *eviction.Policy) { p.OrphanAge, p.OrphanShare = 0, 100 }},
		"high too high": {
			func(p *eviction.Policy) { p.HighPercent = 101 },
			[]string{"--high-threshold-percent 101: is not a percentage; give 0 to 100"},
		},
		"high negative": {
			func(p *eviction.Policy) { p.HighPercent = -1 },
			[]string{"--high-threshold-percent -1: is not a percentage"},
		},
		"low too high": {
			func(p *eviction.Policy) { p.LowPercent = 101 },
			[]string{"--low-threshold-percent 101: is not a percentage"},
		},
		"low negative": {
			func(p *eviction.Policy) { p.LowPercent = -5 },
			[]string{"--low-threshold-percent -5: is not a percentage"},
		},
		"low equals high": {
			func(p *eviction.Policy) { p.LowPercent = 85 },
			[]string{"--low-threshold-percent 85: must be less than --high-threshold-percent, which is 85"},
		},
		"high of nothing": {
			func(p *eviction.Policy) { p.HighPercent, p.LowPercent = 0, 0 },
			[]string{"--low-threshold-percent 0: must be less than --high-threshold-percent, which is 0"},
		},
		"min age negative": {
			func(p *eviction.Policy) { p.MinAge = -time.Second },
			[]string{"--min-age -1s: is negative; give 0 or more"},
		},
		"max age negative": {
			func(p *eviction.Policy) { p.MaxAge = -time.Hour },
			[]string{"--max-age -1h0m0s: is negative; give 0 to keep volumes"},
		},
		"max age within min age": {
			func(p *eviction.Policy) { p.MaxAge = 2 * time.Minute },
			[]string{"--max-age 2m0s: must be longer than --min-age, which is 2m0s"},
		},
		"orphan age negative": {
			func(p *eviction.Policy) { p.OrphanAge = -1 },
			[]string{"--orphan-age -1ns: is negative"},
		},
		"orphan share nothing": {
			func(p *eviction.Policy) { p.OrphanShare = 0 },
			[]string{"--orphan-share-percent 0: is not a percentage; give 1 to 100"},
		},
		"orphan share too much": {
			func(p *eviction.Policy) { p.OrphanShare = 101 },
			[]string{"--orphan-share-percent 101: is not a percentage"},
		},
		"all wrong": {
			func(p *eviction.Policy) {
				*p = eviction.Policy{HighPercent: -1, LowPercent: 200, MinAge: -1, MaxAge: -1, OrphanAge: -1}
			},
			[]string{"--high-threshold-percent", "--low-threshold-percent", "--min-age", "--max-age", "--orphan-age", "--orphan-share-percent"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := eviction.DefaultPolicy()
			tt.change(&p)
			err := p.Validate()
			if len(tt.want) == 0 {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			for _, part := range tt.want {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), "\n", "it becomes one line of a log")
		})
	}
}
