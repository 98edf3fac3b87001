package v1

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplicaCountAsWritten(t *testing.T) {
	for text, count := range map[string]ReplicaCount{"0": 0, "3": 3, "5000": 5000, `"All"`: AllNodes} {
		var got VolumeConfig
		require.NoError(t, json.Unmarshal([]byte(`{"replicas":`+text+`}`), &got))
		require.Equal(t, count, got.Replicas)
		written, err := json.Marshal(got.Replicas)
		require.NoError(t, err)
		require.Equal(t, text, string(written))
	}
	for _, text := range []string{`-1`, `"all"`, `"3"`, `1.5`, `true`} {
		require.ErrorContains(t, json.Unmarshal([]byte(`{"replicas":`+text+`}`), &VolumeConfig{}), `has to be a number, or "All"`, text)
	}
	require.Equal(t, "All", AllNodes.String())
	require.Equal(t, "7", ReplicaCount(7).String())
}
