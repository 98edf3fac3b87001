package discovery

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const aDisk = "naa.5000c500a1b2c3d4"

var anytime = time.Unix(1_700_000_000, 0)

func found(change ...func(*Found)) *Found {
	f := &Found{Class: "fast", Path: "/mnt/fast/a", Kind: Device, Disk: aDisk, Size: 1 << 30}
	for _, c := range change {
		c(f)
	}
	return f
}

func aVolume(change ...func(*Volume)) *Volume {
	v := &Volume{Name: "static-a", UID: "pv-1", Class: "fast", Path: "/mnt/fast/a", Disk: aDisk, Delete: true, Claim: "db/data", ClaimUID: "claim-1"}
	for _, c := range change {
		c(v)
	}
	return v
}

func released(v *Volume) { v.Released = true }

// A disk is cleaned only for its last PersistentVolume, and only once the claim of that is gone.
func TestJudge(t *testing.T) {
	handedOut := Entry{Path: "/mnt/fast/a", Volume: "pv-1", Claim: "claim-1", Offer: 1}
	for name, c := range map[string]struct {
		found *Found
		entry Entry
		of    *Volume
		keep  bool
		want  State
		says  string
	}{
		"new":                           {found: found(), want: Ready},
		"nothing":                       {want: Missing},
		"something refused":             {found: found(func(f *Found) { f.Problem = "read-only" }), want: Refused, says: "read-only"},
		"bound":                         {found: found(), of: aVolume(), want: Provided},
		"released":                      {found: found(), entry: handedOut, of: aVolume(released), want: Cleaning},
		"released unseen":               {found: found(), entry: Entry{Offer: 1}, of: aVolume(released), want: Cleaning},
		"of a claim unseen":             {found: found(), entry: Entry{Volume: "pv-1", Offer: 1}, of: aVolume(released), want: Cleaning},
		"never offered":                 {found: found(), of: aVolume(released), want: Refused, says: "clean the disk by hand"},
		"never offered, once bound":     {found: found(), entry: Entry{Volume: "pv-1", Claim: "claim-1"}, of: aVolume(released), want: Refused, says: "clean the disk by hand"},
		"retained":                      {found: found(), entry: handedOut, of: aVolume(released, func(v *Volume) { v.Delete = false }), want: Kept},
		"its class keeps":               {found: found(), entry: handedOut, of: aVolume(released), keep: true, want: Kept},
		"another claim":                 {found: found(), entry: Entry{Volume: "pv-1", Claim: "claim-2"}, of: aVolume(released), want: Refused, says: "meanwhile bound to a claim other than db/data, so nothing is cleaned: clean the disk by hand and delete the PersistentVolume"},
		"another disk":                  {found: found(), entry: handedOut, of: aVolume(released, func(v *Volume) { v.Disk = "naa.other" }), want: Refused, says: "another disk"},
		"another disk, in use":          {found: found(), of: aVolume(func(v *Volume) { v.Disk = "naa.other" }), want: Refused, says: "kubelet gives pods whatever is there: stop the pods of claim db/data until its disk has the path again"},
		"another disk, unclaimed":       {found: found(), of: aVolume(func(v *Volume) { v.Disk, v.Claim, v.ClaimUID = "naa.other", "", "" }), want: Refused, says: "kubelet gives pods whatever is there: delete the PersistentVolume, or give its disk the path back"},
		"the disk is gone":              {entry: handedOut, of: aVolume(released), want: Missing, says: "there is nothing at /mnt/fast/a"},
		"gone while in use":             {entry: handedOut, of: aVolume(), want: Missing},
		"unmounted":                     {found: found(func(f *Found) { f.Disk, f.Problem = "", "nothing is mounted here" }), entry: handedOut, of: aVolume(), want: Missing, says: "nothing is mounted here"},
		"being deleted":                 {found: found(), entry: handedOut, of: aVolume(released, func(v *Volume) { v.Deleting = true }), want: Refused, says: "was deleted before its disk was cleaned"},
		"clean":                         {found: found(), entry: handedOut.Clean(), of: aVolume(released), want: Cleaned},
		"handed out since":              {found: found(), entry: Entry{Volume: "pv-2", Offer: 2}, of: aVolume(released), want: Refused, says: "restored from a backup"},
		"handed out since, bound":       {found: found(), entry: Entry{Volume: "pv-2", Offer: 2}, of: aVolume(), want: Refused, says: "restored from a backup"},
		"a clean one is back":           {found: found(), entry: Entry{Volume: "pv-2", Cleaned: []string{"pv-1"}}, of: aVolume(released), want: Refused, says: "exists again"},
		"a clean one is bound":          {found: found(), entry: handedOut.Clean(), of: aVolume(), want: Provided},
		"a clean one was bound, unseen": {found: found(), entry: handedOut.Clean(), of: aVolume(released, func(v *Volume) { v.ClaimUID = "claim-2" }), want: Refused, says: "exists again"},
		"the next one":                  {found: found(), entry: Entry{Volume: "pv-0", Cleaned: []string{"pv-0"}, Offer: 2}, of: aVolume(released), want: Cleaning},
	} {
		t.Run(name, func(t *testing.T) {
			got := Judge(c.found, c.entry, c.of, !c.keep, anytime)
			require.Equal(t, c.want, got.State, got.Message)
			require.Contains(t, got.Message, c.says)
			require.False(t, got.MustBeEmpty)
			if c.want != Ready {
				require.False(t, got.Entry.Offered)
			}
		})
	}
}

// A disk that was handed out and not cleaned is offered again only if it is empty.
func TestJudgeOfWhatWasDeletedByHand(t *testing.T) {
	was := Judge(found(), Entry{}, aVolume(), true, anytime).Entry
	require.Equal(t, Entry{Path: "/mnt/fast/a", Volume: "pv-1", Claim: "claim-1"}, was)
	v := Judge(found(), was, nil, true, anytime)
	require.Equal(t, Ready, v.State)
	require.True(t, v.MustBeEmpty)
	refused := v.NotEmpty(was, errors.New("it holds a file"))
	require.Equal(t, Refused, refused.State)
	require.Equal(t, was, refused.Entry)
	require.Contains(t, refused.Message, "it holds a file")
}

// Each offer gets a higher number than all before it, and an offer that stands keeps its number.
func TestOffersAreCounted(t *testing.T) {
	first := Judge(found(), Entry{}, nil, true, anytime)
	require.EqualValues(t, 1_700_000_000, first.Entry.Offer)
	again := Judge(found(), first.Entry, nil, true, anytime)
	require.Equal(t, first, again)
	provided := Judge(found(), first.Entry, aVolume(), true, anytime)
	cleaning := Judge(found(), provided.Entry, aVolume(released), true, anytime)
	require.Equal(t, Cleaning, cleaning.State)
	second := Judge(found(), cleaning.Entry.Clean(), nil, true, anytime)
	require.Equal(t, Ready, second.State)
	require.EqualValues(t, 1_700_000_001, second.Entry.Offer, "in the same second")
	require.False(t, second.MustBeEmpty)
	forgotten := Judge(found(), Entry{}, nil, true, anytime.Add(time.Minute))
	require.Greater(t, forgotten.Entry.Offer, second.Entry.Offer, "what was noted is lost")
	back := Judge(found(), cleaning.Entry.Clean(), nil, true, anytime.Add(-time.Hour))
	require.EqualValues(t, 1_700_000_001, back.Entry.Offer, "the clock was put back")
}

// A disk that was cleaned, and whose PersistentVolume was then bound to another claim, is cleaned again afterwards.
func TestACleanVolumeThatIsUsedAgain(t *testing.T) {
	clean := Entry{Volume: "pv-1", Claim: "claim-1", Offer: 1}.Clean()
	again := Judge(found(), clean, aVolume(func(v *Volume) { v.ClaimUID = "claim-2" }), true, anytime)
	require.Equal(t, Provided, again.State)
	require.Equal(t, Cleaning, Judge(found(), again.Entry, aVolume(released, func(v *Volume) { v.ClaimUID = "claim-2" }), true, anytime).State)
}

// If a partition was deleted, the kernel numbers the logical ones behind it anew at the next boot. One that has
// another's number is neither cleaned nor offered with its data.
func TestJudgeOfPartitionsThatAreRenumbered(t *testing.T) {
	at := func(start, size int64) *Found {
		return found(func(f *Found) { f.Start, f.Size, f.PartitionSize = start, size, size })
	}
	offered := Judge(at(1<<20, 1<<30), Entry{}, nil, true, anytime)
	require.Equal(t, Ready, offered.State)
	provided := Judge(at(1<<20, 1<<30), offered.Entry, aVolume(), true, anytime)
	require.Equal(t, Provided, provided.State)
	require.Equal(t, Cleaning, Judge(at(1<<20, 1<<30), provided.Entry, aVolume(released), true, anytime).State)
	for _, other := range []*Found{at(5<<20, 1<<30), at(1<<20, 1<<29)} {
		for _, v := range []*Volume{aVolume(), aVolume(released)} {
			got := Judge(other, provided.Entry, v, true, anytime)
			require.Equal(t, Refused, got.State)
			require.Contains(t, got.Message, "the partition table has changed")
			require.Equal(t, provided.Entry, got.Entry)
		}
		for _, was := range []Entry{offered.Entry, provided.Entry.Clean()} {
			free := Judge(other, was, nil, true, anytime)
			require.Equal(t, Ready, free.State)
			require.True(t, free.MustBeEmpty)
			require.Greater(t, free.Entry.Offer, was.Offer)
			full := free.NotEmpty(was, errors.New("it holds a database"))
			require.Equal(t, "the partition table has changed, so another partition may have had its data, and it holds a database", full.Message)
			require.True(t, Judge(other, full.Entry, nil, true, anytime).MustBeEmpty, "until it is empty")
			require.False(t, Judge(other, free.Entry, nil, true, anytime).MustBeEmpty)
		}
	}
	old := Entry{Volume: "pv-1", Claim: "claim-1", Offer: 1}
	require.EqualValues(t, 1<<20, Judge(at(1<<20, 1<<30), old, aVolume(), true, anytime).Entry.Start, "an earlier release has not recorded it")
	require.Equal(t, Cleaning, Judge(at(1<<20, 1<<30), old, aVolume(released), true, anytime).State)
	require.Zero(t, Judge(found(), old, aVolume(), true, anytime).Entry.Size, "a whole disk that grows stays the same")
}

// The kernel does not show where a partition that kpartx has mapped is on its disk, so one of another claim may have got
// its number.
func TestJudgeOfMappedPartitions(t *testing.T) {
	const part = "dm-part1-mpath-3600"
	mapped := found(func(f *Found) { f.Disk = part })
	require.ErrorContains(t, mapped.CheckNew(), "make a file system on it and mount that here, or use a logical volume")
	v := func(change ...func(*Volume)) *Volume {
		return aVolume(append(change, func(v *Volume) { v.Disk = part })...)
	}
	provided := Judge(mapped, Entry{Offer: 1}, v(), true, anytime)
	require.Equal(t, Provided, provided.State, "one that an earlier version has offered")
	got := Judge(mapped, provided.Entry, v(released), true, anytime)
	require.Equal(t, Refused, got.State)
	require.Contains(t, got.Message, "clean the partition by hand and delete PersistentVolume static-a")
	require.True(t, Judge(mapped, got.Entry, nil, true, anytime).MustBeEmpty)
	mounted := Found{Kind: Filesystem, Disk: "fs-u", Aliases: []string{part}}
	require.NoError(t, mounted.CheckNew())
}

// After a boot, the name of a plain dm-crypt mapping may be another disk's, with another claim's data. That is neither
// offered nor cleaned, and where the name's disk was stays recorded.
func TestJudgeOfNamesThatAnotherDiskHas(t *testing.T) {
	const name = "dm-CRYPT-PLAIN-data1"
	on := func(disks ...string) *Found {
		return found(func(f *Found) { f.Disk, f.Aliases = name, disks })
	}
	v := func(aliases string, change ...func(*Volume)) *Volume {
		return aVolume(append(change, func(v *Volume) { v.Disk, v.Aliases = name, aliases })...)
	}
	offered := Judge(on("naa.1"), Entry{}, nil, true, anytime)
	was := offered.Entry.WithAliases(on("naa.1"), true)
	provided := Judge(on("naa.1"), was, v("naa.1"), true, anytime)
	require.Equal(t, Provided, provided.State)
	for _, now := range []*Found{on("naa.2"), on()} {
		for _, of := range []*Volume{v("naa.1"), v("naa.1", released)} {
			got := Judge(now, provided.Entry, of, true, anytime)
			require.Equal(t, Refused, got.State)
			require.Contains(t, got.Message, "another disk is at /mnt/fast/a")
			require.Contains(t, got.Message, " now, and was on naa.1;")
			require.Equal(t, provided.Entry, got.Entry.WithAliases(now, false))
		}
		free := Judge(now, was, nil, true, anytime)
		require.True(t, free.MustBeEmpty)
		require.Greater(t, free.Entry.Offer, was.Offer)
		full := free.NotEmpty(was, errors.New("it holds a database"))
		require.Contains(t, full.Message, " now, and was on naa.1, so another disk may have had its data, and it holds a database")
		require.True(t, Judge(now, full.Entry.WithAliases(now, false), nil, true, anytime).MustBeEmpty, "until it is empty")
		if len(now.Aliases) > 0 {
			require.False(t, Judge(now, free.Entry.WithAliases(now, true), nil, true, anytime).MustBeEmpty)
		}
	}
	require.Equal(t, Refused, Judge(on("naa.2"), Entry{Offer: 1}, v("fs-u,naa.1"), true, anytime).State, "the PersistentVolume says where it was")

	missing := on("naa.2")
	missing.AliasesUnknown = errors.New("naa.1 is gone")
	require.Equal(t, Provided, Judge(missing, was, v("naa.1"), true, anytime).State, "it may be on naa.1 as well")
	require.Equal(t, was, was.WithAliases(missing, true))
}

// That a device which has only a name is still the same cannot be proved, so it is not cleaned.
func TestJudgeOfNamesIsNoCleaning(t *testing.T) {
	for _, f := range []*Found{
		found(func(f *Found) { f.Disk = "loop-/srv/disk.img" }),
		found(func(f *Found) { f.Disk, f.Aliases = "dm-CRYPT-PLAIN-data1", []string{"naa.1-part6"} }),
	} {
		v := aVolume(released, func(v *Volume) { v.Disk = f.Disk })
		got := Judge(f, Entry{Offer: 1, Volume: "pv-1", Claim: "claim-1", Aliases: f.Aliases}, v, true, anytime)
		require.Equal(t, Refused, got.State)
		require.Equal(t, "its ID, "+f.Disk+", is only a name, which another disk may have by now, so nothing is cleaned: clean the disk by hand and delete PersistentVolume static-a", got.Message)
		require.True(t, Judge(f, got.Entry, nil, true, anytime).MustBeEmpty)
	}
}

// A partition that is extended stays the same, also after its release, if that was seen before.
func TestJudgeOfPartitionsThatGrow(t *testing.T) {
	at := func(start, size int64) *Found {
		return found(func(f *Found) { f.Start, f.Size, f.PartitionSize = start, size, size })
	}
	offered := Judge(at(1<<20, 1<<30), Entry{}, nil, true, anytime)
	free := Judge(at(1<<20, 1<<31), offered.Entry, nil, true, anytime)
	require.Equal(t, Ready, free.State)
	require.False(t, free.MustBeEmpty)
	require.EqualValues(t, 1<<31, free.Entry.Size)
	require.Equal(t, offered.Entry.Offer, free.Entry.Offer)

	provided := Judge(at(1<<20, 1<<30), offered.Entry, aVolume(), true, anytime)
	require.False(t, provided.Grown)
	unseen := Judge(at(1<<20, 1<<31), offered.Entry, aVolume(released), true, anytime)
	require.Equal(t, Refused, unseen.State, "it was not seen while the claim had it")
	require.True(t, Judge(at(1<<20, 1<<31), unseen.Entry, nil, true, anytime).MustBeEmpty, "its PersistentVolume was deleted then")
	require.Equal(t, Refused, Judge(at(5<<20, 1<<31), provided.Entry, aVolume(), true, anytime).State, "it is a larger partition elsewhere")
	grown := Judge(at(1<<20, 1<<31), provided.Entry, aVolume(), true, anytime)
	require.Equal(t, Provided, grown.State, grown.Message)
	require.True(t, grown.Grown)
	require.EqualValues(t, 1<<31, grown.Entry.Size)
	require.False(t, Judge(at(1<<20, 1<<31), grown.Entry, aVolume(), true, anytime).Grown)
	require.Equal(t, Cleaning, Judge(at(1<<20, 1<<31), grown.Entry, aVolume(released), true, anytime).State)
}

// A bound PersistentVolume that was restored from a backup does not take over a disk that a newer one
// has, and its release cleans nothing.
func TestARestoredVolumeTakesNothingOver(t *testing.T) {
	newer := Entry{Path: "/mnt/fast/a", Volume: "pv-2", Claim: "claim-2", Offer: 2}
	bound := Judge(found(), newer, aVolume(), true, anytime)
	require.Equal(t, Refused, bound.State)
	require.Equal(t, newer, bound.Entry)
	then := Judge(found(), bound.Entry, aVolume(released), true, anytime)
	require.Equal(t, Refused, then.State)
	require.Equal(t, newer, then.Entry)
}

// The claim of the last PersistentVolume is not taken for one of the next, which was kept at first.
func TestReleasedAfterItWasKept(t *testing.T) {
	was := Entry{Path: "/mnt/fast/a", Volume: "pv-0", Claim: "claim-0", Cleaned: []string{"pv-0"}, Offer: 2}
	retained := Judge(found(), was, aVolume(released, func(v *Volume) { v.Delete = false }), true, anytime)
	require.Equal(t, Kept, retained.State)
	deleting := Judge(found(), was, aVolume(released, func(v *Volume) { v.Deleting = true }), true, anytime)
	require.Equal(t, Refused, deleting.State)
	kept := Judge(found(), was, aVolume(released), false, anytime)
	require.Equal(t, Kept, kept.State)
	for _, e := range []Entry{retained.Entry, deleting.Entry, kept.Entry} {
		require.Equal(t, "pv-1", e.Volume)
		require.Equal(t, Cleaning, Judge(found(), e, aVolume(released), true, anytime).State)
	}
}

// An interrupted erasure starts from the beginning if the PersistentVolume was in use again in between.
func TestUseAfterHalfAnErasure(t *testing.T) {
	half := Entry{Path: "/mnt/fast/a", Volume: "pv-1", Claim: "claim-1", Offer: 1, Offset: 1 << 29}
	again := Judge(found(), half, aVolume(func(v *Volume) { v.Claim, v.ClaimUID = "", "" }), true, anytime)
	require.Equal(t, Provided, again.State)
	require.Zero(t, again.Entry.Offset)
	require.EqualValues(t, 1<<29, Judge(found(), half, aVolume(released), true, anytime).Entry.Offset)
}
