package fetch

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
)

// refusing returns a bed whose directory is complete except for the key "set/x//y".
func refusing(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	for _, name := range []string{"a", "b", "x//y"} {
		b.fake.put("set/"+name, []byte(name))
	}
	b.mustRefuse("set/x//y")
	return b
}

// mustRefuse runs, and checks that exactly these keys are refused and that the message names the first.
func (b *bed) mustRefuse(keys ...string) {
	b.t.Helper()
	refused, progress, err := b.run("s3://bucket/set/")
	require.NoError(b.t, err)
	var got []string
	for _, r := range refused {
		got = append(got, r.Key)
	}
	require.Equal(b.t, keys, got)
	require.EqualValues(b.t, len(keys), progress.Refused())
	message := progress.Status(time.Now()).Message
	if len(keys) == 0 {
		require.NotContains(b.t, message, "refused")
	} else {
		require.Contains(b.t, message, refused[0].String())
	}
}

// A run lists the source again after keys were refused: they may have been removed since.
func TestRefusedKeysAreListedAgain(t *testing.T) {
	b := refusing(t)
	b.mustRefuse("set/x//y")
	b.fake.delete("set/x//y")
	b.fake.put("set/x/y", []byte("renamed"))
	b.fake.got()
	b.mustRefuse()
	require.Equal(t, map[string]int{"set/x/y": 1}, b.fake.got(), "what is here is not fetched again")
	b.mustHave(map[string][]byte{"a": []byte("a"), "b": []byte("b"), "x/y": []byte("renamed")})
	b.fake.hook = func(http.ResponseWriter, *http.Request, string) bool {
		t.Error("a complete destination asks for nothing")
		return false
	}
	b.mustRefuse()
}

// Programs may have used the directory after a run that refused keys: what they changed is not overwritten, even if a
// run is killed in between.
func TestListingAgainOverwritesNothing(t *testing.T) {
	b := refusing(t)
	b.fake.delete("set/x//y")
	b.fake.put("set/a", []byte("changed in the source, too"))
	b.fake.put("set/c", []byte("new in the source"))
	b.fake.put("set/d", []byte("new in the source"))
	for _, name := range []string{"a", "c"} {
		file := filepath.Join(b.dest, name)
		require.NoError(t, os.WriteFile(file, []byte("of the user"), 0o600))
		require.NoError(t, os.Chtimes(file, time.Now().Add(time.Minute), time.Now().Add(time.Minute)))
	}
	kept := func() {
		t.Helper()
		for _, name := range []string{"a", "c"} {
			data, err := os.ReadFile(filepath.Join(b.dest, name))
			require.NoError(t, err)
			require.Equal(t, "of the user", string(data))
		}
	}
	b.fake.hook = func(w http.ResponseWriter, _ *http.Request, key string) bool {
		if key == "set/d" {
			fail(w, http.StatusForbidden, "AccessDenied")
		}
		return key == "set/d"
	}
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	kept()
	b.fake.hook = nil
	b.mustRefuse("set/a", "set/c")
	kept()
	require.FileExists(t, filepath.Join(b.dest, "d"))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "a")))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "c")))
	b.mustRefuse()
	b.mustHave(map[string][]byte{
		"a": []byte("changed in the source, too"), "b": []byte("b"), "c": []byte("new in the source"), "d": []byte("new in the source"),
	})
	data, err := os.ReadFile(filepath.Join(b.dest, destination.CompleteFile))
	require.NoError(t, err)
	var c complete
	require.NoError(t, json.Unmarshal(data, &c))
	require.Zero(t, c.Refused)
}

// A refresh that only finds a key that is refused names it.
func TestRefreshNamesANewRefusedKey(t *testing.T) {
	b := newVersionBed(t)
	b.few("a")
	_, err := b.load()
	require.NoError(t, err)
	b.fake.put("set/x//y", []byte("b"))
	status, err := b.load()
	require.NoError(t, err)
	require.EqualValues(t, 1, status.Refused)
	require.Contains(t, status.Message, "complete already: ")
	require.Contains(t, status.Message, "; 1 refused, the first: ")
	require.Contains(t, status.Message, "x//y")
}
