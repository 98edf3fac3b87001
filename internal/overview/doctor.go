package overview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Levels of a check, as in the reports.
const (
	LevelFail = "FAIL"
	LevelWarn = "WARN"
)

// An Examination holds the findings of a node's checks, those with FAIL first.
type Examination struct {
	Node    string            `json:"node"`
	Checked metav1.Time       `json:"checked,omitzero"`
	Made    int32             `json:"made"` // number of checks that were run
	Found   []flexlvmv1.Check `json:"found"`
}

// Worst returns the worst level, FAIL or WARN, or an empty string if nothing was found.
func (e *Examination) Worst() string {
	if len(e.Found) == 0 {
		return ""
	}
	return e.Found[0].Level
}

// ExaminationsOf returns the findings of the nodes' checks, worst node first. That a node does not report or
// was not checked is a finding too.
func ExaminationsOf(storages []flexlvmv1.NodeStorage, now time.Time) []Examination {
	out := []Examination{}
	for i := range storages {
		s := &storages[i]
		e := Examination{Node: s.Name, Checked: s.Status.CheckedTime, Made: s.Status.CheckCount, Found: slices.Clone(s.Status.Checks)}
		add := func(level, check, detail, do string) {
			e.Found = append(e.Found, flexlvmv1.Check{Level: level, Check: check, Detail: detail, Do: do})
		}
		for _, p := range nodeProblems(s, now) {
			level := LevelWarn
			if p.Severity == Critical {
				level = LevelFail
			}
			add(level, "node daemon", p.Message, p.Next)
		}
		for _, p := range poolProblems(s) {
			level := LevelWarn
			if p.Severity == Critical {
				level = LevelFail
			}
			add(level, "pool "+p.Pool, p.Message, p.Next)
		}
		if s.Status.CheckedTime.IsZero() {
			add(LevelWarn, "examination", "the node daemon has not run its checks yet", "wait a few minutes; a node daemon of an earlier release runs no checks: upgrade it, or run flexlvm doctor on the node")
		}
		slices.SortStableFunc(e.Found, func(a, b flexlvmv1.Check) int { return strings.Compare(a.Level, b.Level) })
		if e.Found == nil {
			e.Found = []flexlvmv1.Check{}
		}
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b Examination) int {
		return cmp.Or(cmp.Compare(level(a), level(b)), cmp.Compare(len(b.Found), len(a.Found)), cmp.Compare(a.Node, b.Node))
	})
	return out
}

func level(e Examination) int {
	switch e.Worst() {
	case LevelFail:
		return 0
	case LevelWarn:
		return 1
	}
	return 2
}

// Examined returns a one-line summary of examinations.
func Examined(all []Examination) string {
	failed, warned := 0, 0
	for i := range all {
		switch all[i].Worst() {
		case LevelFail:
			failed++
		case LevelWarn:
			warned++
		}
	}
	return fmt.Sprintf("%s: %d with FAIL, %d with WARN, %d OK", volume.Pluralize(len(all), "node", "nodes"), failed, warned, len(all)-failed-warned)
}
