package luks

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/luks/lukstest"
)

const (
	secret = "0123456789abcdef0123456789abcdef"
	id     = lukstest.UUID
	device = "/dev/mapper/flexlvm-a"
)

func newKey(t *testing.T) Key {
	t.Helper()
	k, err := NewKey([]byte(secret))
	require.NoError(t, err)
	return k
}

// A run is a program that was run, and its standard input.
type run struct{ line, stdin string }

func record(runs *[]run) commandtest.InputFunc {
	return func(stdin string, argv ...string) error {
		*runs = append(*runs, run{strings.Join(argv, " "), stdin})
		return nil
	}
}

// The key is passed on standard input only, byte for byte, and all other parameters are fixed.
func TestCommands(t *testing.T) {
	var runs []run
	host, key := record(&runs), newKey(t)
	require.NoError(t, Format(t.Context(), host, device, key))
	require.NoError(t, SetUUID(t.Context(), host, device, id))
	require.NoError(t, Open(t.Context(), host, device, "flexlvm-crypt-x", key))
	require.NoError(t, CheckKey(t.Context(), host, device, key))
	require.NoError(t, Resize(t.Context(), host, "flexlvm-crypt-x", key))
	require.NoError(t, Close(t.Context(), host, "flexlvm-crypt-x"))
	require.Equal(t, []run{
		{"cryptsetup luksFormat --batch-mode --type=luks2 --cipher=aes-xts-plain64 --key-size=512 --hash=sha256" +
			" --pbkdf=argon2id --pbkdf-force-iterations=4 --pbkdf-memory=65536 --pbkdf-parallel=1" +
			" --sector-size=512 --offset=32768 --luks2-metadata-size=16384 --luks2-keyslots-size=16744448 --key-file=- -- " + device, secret},
		{"cryptsetup luksUUID --batch-mode --uuid=" + id + " -- " + device, ""},
		{"cryptsetup open --batch-mode --type=luks2 --serialize-memory-hard-pbkdf --key-file=- -- " + device + " flexlvm-crypt-x", secret},
		{"cryptsetup open --batch-mode --type=luks2 --serialize-memory-hard-pbkdf --test-passphrase --key-file=- -- " + device, secret},
		{"cryptsetup resize --batch-mode --key-file=- -- flexlvm-crypt-x", secret},
		{"cryptsetup close -- flexlvm-crypt-x", ""},
	}, runs)
}

func failing(code int) commandtest.InputFunc {
	return func(string, ...string) error {
		return &testingexec.FakeExitError{Status: code}
	}
}

func TestErrors(t *testing.T) {
	key := newKey(t)
	require.ErrorIs(t, Open(t.Context(), failing(2), device, "x", key), ErrWrongKey)
	require.ErrorIs(t, CheckKey(t.Context(), failing(2), device, key), ErrWrongKey)
	require.ErrorIs(t, Resize(t.Context(), failing(2), "x", key), ErrWrongKey)
	require.ErrorIs(t, Close(t.Context(), failing(5), "x"), ErrBusy)
	require.NotErrorIs(t, Close(t.Context(), failing(2), "x"), ErrWrongKey, "no key was given")
	err := Open(t.Context(), failing(4), device, "x", key)
	require.NotErrorIs(t, err, ErrWrongKey)
	require.NotErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "open the encrypted volume on "+device)
}

func TestKey(t *testing.T) {
	for _, n := range []int{0, MinKey - 1, MaxKey + 1} {
		_, err := NewKey(make([]byte, n))
		require.ErrorContains(t, err, fmt.Sprintf("this one has %d", n))
	}
	require.True(t, Key{}.IsZero())
	key := newKey(t)
	require.False(t, key.IsZero())
	type hidden struct{ in struct{ Key Key } }
	var h hidden
	h.in.Key = key
	numbers := strings.Trim(fmt.Sprintf("%d", []byte(secret)), "[]")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, value := range []any{key, &key, struct{ Key Key }{key}, []Key{key}, h, &h} {
			printed := fmt.Sprintf(verb, value)
			for _, leak := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), numbers, strings.TrimPrefix(fmt.Sprintf("%#v", []byte(secret)), "[]byte")} {
				require.NotContains(t, printed, leak, verb)
			}
		}
	}
	b, err := json.Marshal(map[string]any{"key": key})
	require.NoError(t, err)
	require.JSONEq(t, `{"key":"(a key)"}`, string(b))
}
