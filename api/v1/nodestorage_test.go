package v1_test

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	v1 "github.com/flexlvm/flexlvm/api/v1"
)

func bytes(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

// pools returns the pools of a node, one in use and one empty.
func pools() []v1.Pool {
	return []v1.Pool{
		{Name: "fast", UUID: "u1", Layout: "linear", Size: bytes(1<<40 + 837<<30), Free: bytes(300 << 30), Reclaimable: bytes(1 << 30), UsedPercent: 84},
		{Name: "slow", UUID: "u2", Layout: "linear", Size: bytes(8 << 30), Free: bytes(8 << 30), Promised: bytes(1<<30 + 124<<20)},
	}
}

func TestSummarize(t *testing.T) {
	require.Equal(t, v1.Summary{
		Pools: "fast,slow", Size: "1.81TiB,8GiB", Used: "84%,0%", Free: "300GiB,8GiB",
		Reclaimable: "1GiB,0B", Promised: "0B,1.12GiB",
	}, v1.Summarize(pools()))
	require.Zero(t, v1.Summarize(nil))
}

// The API server refuses a status with a longer list, so what the daemon writes must be bounded by the same numbers.
func TestMaxItemsOfTheDefinition(t *testing.T) {
	content, err := os.ReadFile("../../installer/base/crd/flexlvm.io_nodestorages.yaml")
	require.NoError(t, err)
	type schema struct {
		Properties map[string]schema
		Items      *schema
		MaxItems   int
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(content, &crd))
	status := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties
	pool := status["pools"].Items.Properties
	require.Equal(t, v1.MaxOrphans, status["orphans"].MaxItems)
	require.Equal(t, v1.MaxDeclaredVolumes, status["declaredVolumes"].MaxItems)
	require.Equal(t, v1.MaxPoolDevices, pool["deviceFree"].MaxItems)
	require.Equal(t, v1.MaxPoolDevices, pool["deviceReclaimable"].MaxItems)
}

// A printer column shows only the first result of its path, so each path must have exactly one.
func TestColumnsShowAllOfThem(t *testing.T) {
	content, err := os.ReadFile("../../installer/base/crd/flexlvm.io_nodestorages.yaml")
	require.NoError(t, err)
	var crd struct {
		Spec struct {
			Versions []struct {
				Name    string
				Columns []struct{ Name, Type, JSONPath string } `json:"additionalPrinterColumns"`
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(content, &crd))
	require.Len(t, crd.Spec.Versions, 1)

	node := v1.NodeStorage{Status: v1.NodeStorageStatus{
		ObservedTime: metav1.NewTime(time.Date(2026, 11, 20, 18, 0, 0, 0, time.UTC)),
		Version:      "v0.1.0", Summary: v1.Summarize(pools()), Pools: pools(), Volumes: 7,
		Conditions: []metav1.Condition{
			{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Message: "all is well"},
			{Type: v1.ConditionDiskPressure, Status: metav1.ConditionFalse},
			{Type: v1.ConditionShortfall, Status: metav1.ConditionUnknown},
		},
	}}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&node)
	require.NoError(t, err)
	got := map[string]any{}
	for _, column := range crd.Spec.Versions[0].Columns {
		path := jsonpath.New(column.Name)
		require.NoError(t, path.Parse("{"+column.JSONPath+"}"))
		found, err := path.FindResults(object)
		require.NoError(t, err, column.Name)
		require.Len(t, found, 1, column.Name)
		require.Len(t, found[0], 1, column.Name)
		got[column.Name] = found[0][0].Interface()
	}
	require.Equal(t, map[string]any{
		"Ready": "True", "Pools": "fast,slow", "Size": "1.81TiB,8GiB", "Used": "84%,0%", "Free": "300GiB,8GiB",
		"Reclaimable": "1GiB,0B", "Promised": "0B,1.12GiB", "Volumes": int64(7), "Orphans": int64(0),
		"Pressure": "False", "Shortfall": "Unknown", "Seen": "2026-11-20T18:00:00Z", "Version": "v0.1.0", "Message": "all is well",
	}, got)
}

// The API server rejects a status in which a time is null, so unknown times are omitted.
func TestUnknownTimesAreLeftOut(t *testing.T) {
	content, err := json.Marshal(v1.NodeStorage{Status: v1.NodeStorageStatus{
		Volumes: 1, Orphans: []v1.Orphan{{Pool: "fast", Name: "pvc-1"}},
	}})
	require.NoError(t, err)
	require.NotContains(t, string(content), `"lastUsed"`)
	require.NotContains(t, string(content), `"created"`)
	require.NotContains(t, string(content), `"observedTime"`)
	require.NotContains(t, string(content), `"summary"`)
}
