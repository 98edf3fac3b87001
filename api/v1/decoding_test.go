package v1_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// eachSchema calls do for each mapping in the CRDs: each schema and printer column is one of them.
func eachSchema(t *testing.T, do func(crd string, schema map[string]any)) {
	t.Helper()
	files, err := filepath.Glob("../../installer/base/crd/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 5)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var crd any
		require.NoError(t, yaml.Unmarshal(content, &crd))
		var look func(any)
		look = func(at any) {
			switch at := at.(type) {
			case map[string]any:
				do(filepath.Base(file), at)
				for _, below := range at {
					look(below)
				}
			case []any:
				for _, below := range at {
					look(below)
				}
			}
		}
		look(crd)
	}
}

// A single object that the API server accepts and Go cannot decode would end every watch and fail every list of
// its kind.
func TestWhatTheAPIServerTakesCanBeRead(t *testing.T) {
	type texts struct{ taken, refused []string }
	quantities := texts{
		[]string{"0", "5", "1Gi", "1e3", "1E3", "1E", "100m", ".5", "5.", "+1", "-1", "1e-3", "1e99", "9e+18", "17825792Ki"},
		[]string{"1e1.5", "1e.5", "1e5.", "1E1.5", "1e+.5", "1e99999999999999999999", ""},
	}
	times := texts{
		[]string{"2026-11-28T23:30:25Z", "2026-11-28T23:30:25.5Z", "2026-11-28T23:30:25+01:00", "2024-02-29T00:00:00-11:30"},
		[]string{"2026-11-28t23:30:25Z", "2026-11-28T23:30:25z", "2026-11-28T23:30:25x5Z", "2026-11-28T23:30:25+99:99", "2026-11-28T23:30:25Ztail", "2026-11-28T23:30:25+25:00"},
	}
	durations := texts{
		[]string{"0s", "2m0s", "168h0m0s", "1h30m", "1.5s", "300ms", "1µs", "-5s", "2499999h59m59.999999999s"},
		[]string{"x", "", "-", "5", "9999999h0m0s", "3 weeks", "1d", "h"},
	}
	check := func(pattern any, shortest int, of texts, read func(text []byte) error) {
		t.Helper()
		require.NotNil(t, pattern)
		like := regexp.MustCompile(pattern.(string))
		for _, text := range of.taken {
			require.Regexp(t, like, text)
			require.GreaterOrEqual(t, len(text), shortest)
			written, err := json.Marshal(text)
			require.NoError(t, err)
			require.NoError(t, read(written), text)
		}
		for _, text := range of.refused {
			require.False(t, like.MatchString(text) && len(text) >= shortest, "%q", text)
		}
	}
	found := map[string]int{}
	eachSchema(t, func(crd string, schema map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range []string{"minAge", "maxAge", "timeToReady"} {
			if one, _ := properties[name].(map[string]any); one != nil {
				found[crd+" durations"]++
				check(one["pattern"], int(one["minLength"].(float64)), durations, func(text []byte) error { return json.Unmarshal(text, &metav1.Duration{}) })
			}
		}
		if schema["format"] == "date-time" {
			found[crd+" times"]++
			check(schema["pattern"], 0, times, func(text []byte) error { return json.Unmarshal(text, &metav1.Time{}) })
		}
		if schema["x-kubernetes-int-or-string"] == true && schema["pattern"] != "^All$" {
			found[crd+" quantities"]++
			check(schema["pattern"], 0, quantities, func(text []byte) error { return json.Unmarshal(text, &resource.Quantity{}) })
		}
	})
	require.Equal(t, 2, found["flexlvm.io_nodestorages.yaml durations"])
	require.Equal(t, 1, found["flexlvm.io_volumemanagers.yaml durations"])
	for _, of := range []string{"nodestorages.yaml times", "nodestorages.yaml quantities", "volumemanagers.yaml times", "volumemanagers.yaml quantities", "localvolumes.yaml times"} {
		require.NotZero(t, found["flexlvm.io_"+of], of)
	}
}

// A printer column shows only the first of several results, so no path may have a wildcard.
func TestNoColumnHidesTheRest(t *testing.T) {
	eachSchema(t, func(crd string, schema map[string]any) {
		if path, is := schema["jsonPath"].(string); is {
			require.NotContains(t, path, "[*]", crd)
		}
	})
}
