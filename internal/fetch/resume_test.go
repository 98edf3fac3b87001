package fetch

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// halfWay runs until one range of the large object fails for good, and returns
// what must be there in the end, and the temporary file.
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
	require.NoError(t, filepath.WalkDir(filepath.Join(b.dest, tmpDir), func(path string, entry os.DirEntry, err error) error {
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
	_, err = file.WriteAt(make([]byte, 4096), 5*mib)
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
	want["large"] = randomBytes(55, int64(len(want["large"])))
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
	name := filepath.Join(b.dest, manifestFile)
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, data[:len(data)-10], 0o600))
	require.NoError(t, os.Remove(filepath.Join(b.dest, completeFile)))
	_, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Len(t, b.fake.got(), 1, "the file of the torn line")
	b.mustHave(want)
}

func TestWriteAtEveryAlignment(t *testing.T) {
	d, err := openDest(t.TempDir())
	require.NoError(t, err)
	defer d.close()
	buf := newBuffer(64 * kib)
	require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(buf)))%directBlock)
	copy(buf, randomBytes(4, 64*kib))
	for _, at := range []int64{0, 1, 4096, 5000} {
		for _, part := range [][]byte{buf, buf[:4096], buf[:4095], buf[:9000], buf[1:9000], buf[:1]} {
			const size = 128 * kib
			temp := "0/t"
			file, err := d.create(temp, size)
			require.NoError(t, err)
			direct := d.openDirect(temp)
			require.NoError(t, writeAt(file, direct, part, at))
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
			require.NoError(t, d.tmp.Remove(temp))
		}
	}
}

// A temporary file is a new one: what stands at its name is neither opened nor
// followed, and a shelf that leads elsewhere is none.
func TestTemporaryFilesAreNew(t *testing.T) {
	outside := t.TempDir()
	d, err := openDest(t.TempDir())
	require.NoError(t, err)
	defer d.close()
	file, err := d.create("0/a", 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	_, err = d.create("0/a", 0)
	require.ErrorIs(t, err, os.ErrExist)
	require.ErrorContains(t, err, "0/a")

	require.NoError(t, d.tmp.Symlink(filepath.Join(outside, "target"), "0/b"))
	_, err = d.create("0/b", 0)
	require.ErrorIs(t, err, os.ErrExist)
	require.NoError(t, d.tmp.Symlink(outside, "1"))
	_, err = d.create("1/c", 0)
	require.ErrorContains(t, err, "escapes")
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A large object that is half there has all of its room already.
func TestTakenRoom(t *testing.T) {
	d, err := openDest(t.TempDir())
	require.NoError(t, err)
	defer d.close()
	file, err := d.create("large", 8*mib)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.GreaterOrEqual(t, d.taken("large"), 8*mib)
	require.Zero(t, d.taken("none"))

	large := Object{Path: "large", Size: 20 * mib}
	left := &remains{temp: "large", notes: []note{{Path: "large", Size: large.Size, Temp: "large", span: span{0, mib}}}}
	r := &run{dest: d, remains: map[string]*remains{"large": left}}
	require.GreaterOrEqual(t, r.here(large), 8*mib, "not only what came")
	large.Size = 5 * mib
	require.EqualValues(t, 5*mib, r.here(large), "no more than it has")
	left.temp = "none"
	require.EqualValues(t, mib, r.here(large), "it has its name already")
	delete(r.remains, "large")
	require.Zero(t, r.here(large))
}
