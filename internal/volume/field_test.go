package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// ErrUnknown distinguishes what a newer release has written from invalid values.
func TestUnknown(t *testing.T) {
	tags := Tags{State: Ready, FS: "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", Size: GiB, Namespace: "db", Kind: Claim}.Strings()
	pool := DirectoryPool{State: Ready, FS: "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", Size: GiB}.Strings()
	for name, tt := range map[string]struct {
		err     error
		unknown bool
	}{
		"a tag":                   {second(ParseTags(append(tags, "flexlvm.later=1"))), true},
		"a tag's value":           {second(ParseTags(append(tags, tagZeroed+"some"))), false},
		"a directory's tag":       {second(ParseDirectoryPoolTags(append(pool, "flexlvm.later=1"))), true},
		"a directory's state":     {second(ParseDirectoryPoolTags(append(pool[:2:2], Doomed.Tag()))), false},
		"an option":               {second(ParseOptions(map[string]string{"later": "1"})), true},
		"an option's value":       {second(ParseOptions(map[string]string{OptionSize: "large"})), false},
		"another layout's option": {second(ParseOptions(map[string]string{OptionThinPool: "pool"})), false},
	} {
		require.Error(t, tt.err, name)
		var field *FieldError
		require.ErrorAs(t, tt.err, &field, name)
		if tt.unknown {
			require.ErrorIs(t, tt.err, ErrUnknown, name)
		} else {
			require.NotErrorIs(t, tt.err, ErrUnknown, name)
		}
	}
}

func second[T any](_ T, err error) error { return err }
