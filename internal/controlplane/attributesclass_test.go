package controlplane_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestParseAttributes(t *testing.T) {
	for name, tt := range map[string]struct {
		given map[string]string
		want  volume.IOLimits
	}{
		"nothing":               {nil, volume.IOLimits{}},
		"what is not named":     {map[string]string{"writeBps": "50Mi"}, volume.IOLimits{WriteBps: 50 * volume.MiB}},
		"all":                   {map[string]string{"readBps": "1Gi", "writeBps": "4096", "readIops": "5000", "writeIops": "1"}, volume.IOLimits{ReadBps: volume.GiB, WriteBps: 4096, ReadIOPS: 5000, WriteIOPS: 1}},
		"lifted":                {map[string]string{"readBps": "max", "writeIops": "max"}, volume.IOLimits{}},
		"whose volume it is":    {map[string]string{"readIops": "7", "csi.storage.k8s.io/pv/name": "pvc-1"}, volume.IOLimits{ReadIOPS: 7}},
		"lifted beside a limit": {map[string]string{"readBps": "max", "readIops": "100"}, volume.IOLimits{ReadIOPS: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := controlplane.ParseAttributes(tt.given)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestParseAttributesRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		given map[string]string
		says  []string
	}{
		"a value":           {map[string]string{"writeBps": "fast"}, []string{`writeBps "fast"`, "give bytes per second as a whole number"}},
		"too little":        {map[string]string{"readBps": "100"}, []string{`readBps "100"`, "less than 4096"}},
		"empty":             {map[string]string{"readIops": ""}, []string{"readIops"}},
		"a name":            {map[string]string{"iops": "5"}, []string{`unknown parameter "iops"`, "readBps, writeBps, readIops, writeIops"}},
		"of a StorageClass": {map[string]string{"volumeGroup": "fast"}, []string{`unknown parameter "volumeGroup"`}},
		"several":           {map[string]string{"readBps": "x", "writeIops": "0", "b": "", "a": ""}, []string{`readBps "x"`, `writeIops "0"`, `unknown parameter "a", "b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := controlplane.ParseAttributes(tt.given)
			require.Error(t, err)
			require.Zero(t, got)
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			for _, part := range tt.says {
				require.ErrorContains(t, err, part)
			}
		})
	}
}
