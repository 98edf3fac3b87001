package fetch

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// halfWay runs until one range of the large object fails permanently, and returns the expected final
// content and the name of the temporary file.
func halfWay(t *testing.T, b *bed) (want map[string][]byte, temp string) {
	t.Helper()
	want = b.dataset()
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if key != "set/large" || !strings.HasPrefix(r.Header.Get("Range"), "bytes=16777216-") {
			return false
		}
		fail(w, http.StatusInternalServerError, "InternalError")
		return true
	}
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "InternalError")
	b.fake.hook = nil
	b.fake.got()
	require.NoError(t, filepath.WalkDir(filepath.Join(b.dest, destination.TmpDir), func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			temp = path
		}
		return err
	}))
	require.NotEmpty(t, temp)
	require.NoFileExists(t, filepath.Join(b.dest, "large"))
	return want, temp
}

func TestResumeFetchesOnlyWhatIsMissing(t *testing.T) {
	b := newBed(t)
	want, _ := halfWay(t, b)
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"set/large": 1}, b.fake.got())
	b.mustHave(want)
}

// After a power cut the journal may name bytes that are not on disk.
func TestResumeTrustsNoBytesThatAreNotThere(t *testing.T) {
	b := newBed(t)
	want, temp := halfWay(t, b)
	file, err := os.OpenFile(temp, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(make([]byte, 4096), 5*store.MiB)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	_, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"set/large": 2}, b.fake.got(), "the missing range, and the piece that was lost")
	b.mustHave(want)
}

func TestResumeOfAnotherVersionBeginsAnew(t *testing.T) {
	b := newBed(t)
	want, _ := halfWay(t, b)
	want["large"] = storetest.RandomBytes(55, int64(len(want["large"])))
	b.fake.put("set/large", want["large"])
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"set/large": 3}, b.fake.got())
	b.mustHave(want)
}

// A crash may tear the last line of the manifest and of the journal.
func TestTornLines(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	b.fake.got()
	name := filepath.Join(b.dest, destination.ManifestFile)
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, data[:len(data)-10], 0o600))
	require.NoError(t, os.Remove(filepath.Join(b.dest, destination.CompleteFile)))
	_, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Len(t, b.fake.got(), 1, "the file of the torn line")
	b.mustHave(want)
}

func TestWriteAtEveryAlignment(t *testing.T) {
	d, err := destination.Open(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	buf := destination.NewBuffer(64 * store.KiB)
	require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(buf)))%destination.DirectBlock)
	copy(buf, storetest.RandomBytes(4, 64*store.KiB))
	for _, at := range []int64{0, 1, 4096, 5000} {
		for _, part := range [][]byte{buf, buf[:4096], buf[:4095], buf[:9000], buf[1:9000], buf[:1]} {
			const size = 128 * store.KiB
			temp := "0/t"
			file, err := d.Create(temp, size)
			require.NoError(t, err)
			direct := d.OpenDirect(temp)
			require.NoError(t, destination.WriteAt(file, direct, part, at))
			if direct != nil {
				require.NoError(t, direct.Close())
			}
			want := make([]byte, size)
			copy(want[at:], part)
			got := make([]byte, size)
			_, err = file.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, md5Hex(want), md5Hex(got), "%d bytes at %d", len(part), at)
			require.NoError(t, file.Close())
			require.NoError(t, d.Tmp.Remove(temp))
		}
	}
}

// A temporary file is always new: an existing file or link of its name is neither opened nor followed,
// and a subdirectory that is a link out of the directory is refused.
func TestTemporaryFilesAreNew(t *testing.T) {
	outside := t.TempDir()
	d, err := destination.Open(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	file, err := d.Create("0/a", 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	_, err = d.Create("0/a", 0)
	require.ErrorIs(t, err, os.ErrExist)
	require.ErrorContains(t, err, "0/a")

	require.NoError(t, d.Tmp.Symlink(filepath.Join(outside, "target"), "0/b"))
	_, err = d.Create("0/b", 0)
	require.ErrorIs(t, err, os.ErrExist)
	require.NoError(t, d.Tmp.Symlink(outside, "1"))
	_, err = d.Create("1/c", 0)
	require.ErrorContains(t, err, "escapes")
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left)
}

// The space of a partly received large object is already allocated in full.
func TestTakenRoom(t *testing.T) {
	d, err := destination.Open(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	file, err := d.Create("large", 8*store.MiB)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.GreaterOrEqual(t, d.AllocatedBytes("large"), 8*store.MiB)
	require.Zero(t, d.AllocatedBytes("none"))

	large := store.Object{Path: "large", Size: 20 * store.MiB}
	left := &leftovers{temp: "large", notes: []journalNote{{Path: "large", Size: large.Size, Temp: "large", Span: store.Span{Offset: 0, Length: store.MiB}}}}
	r := &run{dest: d, leftovers: map[string]*leftovers{"large": left}}
	require.GreaterOrEqual(t, r.alreadyStored(large), 8*store.MiB, "not only what came")
	large.Size = 5 * store.MiB
	require.EqualValues(t, 5*store.MiB, r.alreadyStored(large), "no more than it has")
	left.temp = "none"
	require.EqualValues(t, store.MiB, r.alreadyStored(large), "it has its name already")
	delete(r.leftovers, "large")
	require.Zero(t, r.alreadyStored(large))
}
