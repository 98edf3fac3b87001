package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseReport(t *testing.T) {
	specs, err := parseReport([]byte(`[{"SpecReports": [
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["External Storage", "volumes"], "LeafNodeType": "It", "LeafNodeText": "should store data", "State": "passed", "RunTime": 1500000000},
		{"ContainerHierarchyTexts": ["volumes"], "LeafNodeType": "It", "LeafNodeText": "should not run", "State": "skipped"},
		{"ContainerHierarchyTexts": ["volumes"], "LeafNodeType": "It", "LeafNodeText": "needs clones", "State": "skipped", "Failure": {"Message": "no clones"}},
		{"ContainerHierarchyTexts": ["volumes"], "LeafNodeType": "It", "LeafNodeText": "fails", "State": "failed", "Failure": {"Message": "why"}},
		{"LeafNodeType": "SynchronizedAfterSuite", "LeafNodeText": "", "State": "failed", "Failure": {"Message": "at the end"}}]}]`))
	require.NoError(t, err)
	require.Equal(t, []Spec{
		{Name: "External Storage volumes should store data", State: "passed", Took: 1500 * time.Millisecond},
		{Name: "volumes needs clones", State: "skipped", Message: "no clones"},
		{Name: "volumes fails", State: "failed", Message: "why"},
		{State: "failed", Message: "at the end"},
	}, specs)

	_, err = parseReport([]byte(`[{"SpecReports": [{"LeafNodeType": "It", "State": "skipped"}]}]`))
	require.ErrorContains(t, err, "no test was selected")
	_, err = parseReport([]byte(`{`))
	require.Error(t, err)
}
