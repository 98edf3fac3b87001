package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
)

// If no node has reported, nothing was examined, and the exit code is not 0 in any format.
func TestExitCodeOfDoctor(t *testing.T) {
	fail := []overview.Examination{{Node: "a", Found: []flexlvmv1.Check{{Level: "FAIL", Check: "driver"}}}}
	for _, format := range outputs {
		var out bytes.Buffer
		err := output(format).printExaminations(&out, []overview.Examination{}, now)
		require.ErrorIs(t, err, errNoReport, format)
		require.ErrorContains(t, err, "check the node daemons with kubectl get pods")
		if format == "json" {
			require.Equal(t, "[]\n", out.String())
		}
		require.ErrorIs(t, output(format).printExaminations(&out, fail, now), errUnfit, format)
		require.NoError(t, output(format).printExaminations(&out, []overview.Examination{{Node: "a"}}, now), format)
	}
}

func TestExaminationsAreTold(t *testing.T) {
	all := []overview.Examination{
		{Node: "a", Checked: metav1.NewTime(now.Add(-3 * time.Minute)), Made: 17, Found: []flexlvmv1.Check{
			{Level: "FAIL", Check: "driver", Detail: "is not there", Do: "install it"}, {Level: "WARN", Check: "xfs", Detail: "is old"},
		}},
		{Node: "b", Made: 17},
	}
	var out bytes.Buffer
	printExaminations(&out, all, now)
	require.Equal(t, `2 nodes: 1 with FAIL, 0 with WARN, 1 OK

a (17 checks, 3m ago)
  FAIL  driver: is not there
        → install it
  WARN  xfs: is old
`, out.String())
	reports := []flexlvmv1.NodeStorage{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
	one, err := reportOf(reports, "b")
	require.NoError(t, err)
	require.Equal(t, "b", one[0].Name)
	_, err = reportOf(reports, "c")
	require.ErrorContains(t, err, "node c has not reported, but 2 other nodes have")
}
