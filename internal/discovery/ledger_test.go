package discovery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/quota"
)

// A disk may still hold data of a PersistentVolume that had a part of it, or the disk of which it is a part.
func TestUncleaned(t *testing.T) {
	for name, c := range map[string]struct {
		ledger Ledger
		disk   string
		want   []string
	}{
		"its partition":          {Ledger{"naa.1-part1": {Volume: "pv-1"}}, "naa.1", []string{"pv-1"}},
		"its disk":               {Ledger{"naa.1": {Volume: "pv-1"}}, "naa.1-part1", []string{"pv-1"}},
		"its file system":        {Ledger{"fs-u": {Volume: "pv-1"}}, "fs-u:/a", []string{"pv-1"}},
		"two of its directories": {Ledger{"fs-u:/b": {Volume: "pv-2"}, "fs-u:/a": {Volume: "pv-1"}}, "fs-u", []string{"pv-1", "pv-2"}},
		"itself":                 {Ledger{"naa.1": {Volume: "pv-1"}}, "naa.1", nil},
		"another":                {Ledger{"naa.1-part2": {Volume: "pv-1"}}, "naa.1-part1", nil},
		"cleaned":                {Ledger{"naa.1": {Volume: "pv-1", Cleaned: []string{"pv-1"}}}, "naa.1-part1", nil},
		"cleaned before":         {Ledger{"naa.1": {Volume: "pv-1", Cleaned: []string{"pv-0"}}}, "naa.1-part1", []string{"pv-1"}},
		"this one was cleaned":   {Ledger{"naa.1": {Volume: "pv-1"}, "naa.1-part1": {Cleaned: []string{"pv-1"}}}, "naa.1-part1", nil},
		"never handed out":       {Ledger{"naa.1": {Offer: 1}}, "naa.1-part1", nil},
	} {
		require.Equal(t, c.want, c.ledger.Uncleaned(&Found{Disk: c.disk}), name)
	}
	mounted := &Found{Disk: "fs-u", Aliases: []string{"naa.1"}}
	require.Equal(t, []string{"pv-1"}, Ledger{"naa.1": {Volume: "pv-1"}}.Uncleaned(mounted), "the disk was a volume, and kubelet has formatted it")
	require.Equal(t, []string{"pv-1"}, Ledger{"fs-u": {Volume: "pv-1", Aliases: []string{"naa.1"}}}.Uncleaned(&Found{Disk: "naa.1"}), "the file system was a volume")
	plain := Ledger{"dm-CRYPT-PLAIN-data2": {Volume: "pv-1", Aliases: []string{"naa.1"}}}
	require.Equal(t, []string{"pv-1"}, plain.Uncleaned(&Found{Disk: "dm-CRYPT-PLAIN-data1", Aliases: []string{"naa.1"}}), "it had another name")
	require.Empty(t, plain.Uncleaned(&Found{Disk: "dm-CRYPT-PLAIN-data1", Aliases: []string{"naa.2"}}))
	other := Ledger{"naa.1-part7": {Volume: "pv-1", Start: 7 << 30, Size: 1 << 30}}
	for start, want := range map[int64][]string{6 << 30: nil, 7<<30 - 512: {"pv-1"}, 7 << 30: {"pv-1"}, 8 << 30: nil} {
		require.Equal(t, want, other.Uncleaned(&Found{Disk: "naa.1-part6", Start: start, PartitionSize: 1 << 30}), "it was partition 7 before, if it is where that was")
		require.Empty(t, other.Uncleaned(&Found{Disk: "naa.2-part6", Start: start, PartitionSize: 1 << 30}), "of another disk")
	}
	part6 := Entry{Start: 6 << 30, Size: 1 << 29}
	grownOver := func(id string, e, part6 Entry, size int64) string {
		return Ledger{id: e, "naa.1-part6": part6}.GrownOver(&Found{Disk: "naa.1-part6", Start: 6 << 30, PartitionSize: size})
	}
	mountedThere := Entry{Volume: "pv-1", Aliases: []string{"naa.1-part7"}, Start: 7 << 30, Size: 1 << 30}
	for id, e := range map[string]Entry{"naa.1-part7": other["naa.1-part7"], "fs-u": mountedThere} {
		require.Empty(t, grownOver(id, e, part6, 1<<30))
		require.Equal(t, id, grownOver(id, e, part6, 1<<30+512))
		require.Empty(t, grownOver(id, e.Clean(), part6, 2<<30), "it was cleaned")
	}
	part6.Cleaned = []string{"pv-1"}
	require.NotEmpty(t, grownOver("naa.1-part7", other["naa.1-part7"], part6, 2<<30), "only its former size was cleaned")
	part6.Size = 3 << 30
	require.Empty(t, grownOver("naa.1-part7", other["naa.1-part7"], part6, 4<<30), "it was not extended there")
	require.Equal(t, []string{"pv-1"}, Ledger{"fs-u": mountedThere}.Uncleaned(&Found{Disk: "naa.1-part6", Start: 6 << 30, PartitionSize: 2 << 30}), "a file system was there")
	e := Entry{Volume: "pv-2", Offset: 7, Erasure: Discard}.Empty([]string{"pv-1"})
	require.Equal(t, Entry{Volume: "pv-2", Cleaned: []string{"pv-1", "pv-2"}}, e)
	require.Equal(t, []string{"pv-1"}, Entry{}.Empty([]string{"pv-1"}).Cleaned, "it had none of its own")
}

// The attributes of a directory are the administrator's only if no tenant has had the directory.
func TestOwnerUnknown(t *testing.T) {
	old := &Owner{Mode: 0o755}
	for name, c := range map[string]struct {
		entry Entry
		want  bool
	}{
		"new":                       {Entry{}, true},
		"noted":                     {Entry{Owner: &Owner{Attributes: &quota.Attributes{}}}, false},
		"of an earlier release":     {Entry{Owner: old, Offered: true}, true},
		"and handed out":            {Entry{Owner: old, Volume: "pv-1"}, false},
		"and another had a part":    {Entry{Owner: old, Cleaned: []string{"pv-1"}}, false},
		"and cleaned by an earlier": {Entry{Owner: old, Volume: "pv-1", Cleaned: []string{"pv-1"}}, false},
		"and cleaned":               {Entry{Owner: old, Volume: "pv-1"}.Clean(), false},
	} {
		require.Equal(t, c.want, c.entry.OwnerUnknown(), name)
	}
}

// A disk that is not seen is no longer offered, and its erasure starts from the beginning. The entries
// of disks that are being cleaned are left alone, because the cleaning writes them.
func TestWithdraw(t *testing.T) {
	l := Ledger{"seen": {Offered: true}, "busy": {Offered: true}, "away": {Offered: true, Offer: 3, Volume: "pv-1", Offset: 5}}
	l.Withdraw(map[string]bool{"seen": true}, map[string]bool{"busy": true})
	require.Equal(t, Ledger{"seen": {Offered: true}, "busy": {Offered: true}, "away": {Offer: 3, Volume: "pv-1"}}, l)
}

func TestHandedOut(t *testing.T) {
	was := Entry{Path: "/a", Volume: "pv-1", Claim: "claim-1", Cleaned: []string{"pv-1", "pv-2"}, Offset: 7, Offer: 3, Offered: true}
	require.Equal(t, Entry{Path: "/a", Volume: "pv-2", Cleaned: []string{"pv-1"}, Offer: 3}, was.HandedOut("pv-2"))
	require.Equal(t, Entry{Path: "/a", Volume: "pv-1", Claim: "claim-1", Cleaned: []string{"pv-2"}, Offer: 3}, was.HandedOut("pv-1"))
}
