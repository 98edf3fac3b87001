// Package mountinfo reads mountinfo files (man 5 proc_pid_mountinfo). A tenant can create lines of any length: kubelet
// bind-mounts a directory of a volume (subPath), which a pod then moves deep down, so that its path in the file system
// grows. Such a line must neither make the other lines unreadable nor take much memory.
package mountinfo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Info is a mount.
type Info struct {
	ID           int
	Major, Minor int // of the file system's device
	// Root is the directory of the file system that is mounted. Read clips it.
	Root         string
	Mountpoint   string
	Options      string // of the mount, separated by commas
	FSType       string
	Source       string
	SuperOptions string // of the file system ("super options" in proc_pid_mountinfo(5)), separated by commas; Read clips them
}

// rootField is the index of the root in a line.
const rootField = 3

const (
	// maxRoot is how many bytes of a root Read keeps. Roots that are compared with others are shorter.
	maxRoot = 2 << 10
	// maxField is how many bytes of another field it keeps: a path of PATH_MAX bytes, all of them escaped.
	maxField = 16 << 10
	// maxFields is how many fields it keeps: all, unless a file system does not escape spaces in its options.
	maxFields = 32
)

// Read returns the mounts in a mountinfo file for which keep returns true; if keep is nil, all. It fails rather than
// skip a line that it cannot read.
func Read(file io.Reader, keep func(*Info) bool) ([]*Info, error) {
	var out []*Info
	for r := bufio.NewReader(file); ; {
		line, err := readLine(r)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		info, err := Parse(line)
		if err != nil {
			return nil, err
		}
		if keep == nil || keep(info) {
			out = append(out, info)
		}
	}
}

// ReadSelf is Read for the mount namespace of the caller.
func ReadSelf(keep func(*Info) bool) ([]*Info, error) {
	runtime.LockOSThread() // the file is the thread's, and must remain while it is read
	defer runtime.UnlockOSThread()
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return Read(f, keep)
}

// readLine reads a line, and clips its fields. The error is io.EOF at the end of the file.
func readLine(r *bufio.Reader) (string, error) {
	var line strings.Builder
	field, length := 0, 0
	for first := true; ; first = false {
		part, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && (!first || len(part) > 0):
			return "", io.ErrUnexpectedEOF
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
		for _, c := range part {
			if length++; c == ' ' {
				field, length = field+1, 0
			}
			if c != '\n' && field < maxFields && length <= maxLength(field) {
				line.WriteByte(c)
			}
		}
		if err == nil {
			return line.String(), nil
		}
	}
}

func maxLength(field int) int {
	if field == rootField {
		return maxRoot
	}
	return maxField
}

// Parse parses a line without its newline.
func Parse(line string) (*Info, error) {
	fields := strings.Split(line, " ")
	separator := slices.Index(fields, "-") // after optional fields, none of which is "-"
	if separator < 6 || len(fields) < separator+4 {
		return nil, fmt.Errorf("the line %.100q is not one of mountinfo", line)
	}
	out := &Info{
		Root: unescape.Replace(fields[rootField]), Mountpoint: unescape.Replace(fields[4]), Options: fields[5],
		FSType: unescape.Replace(fields[separator+1]), Source: unescape.Replace(fields[separator+2]), SuperOptions: fields[separator+3],
	}
	major, minor, _ := strings.Cut(fields[2], ":")
	for _, number := range []struct {
		to   *int
		text string
	}{{&out.ID, fields[0]}, {&out.Major, major}, {&out.Minor, minor}} {
		n, err := strconv.ParseUint(number.text, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("the line %.100q is not one of mountinfo: %w", line, err)
		}
		*number.to = int(n)
	}
	return out, nil
}

// unescape reverts the kernel's escapes of characters that have a meaning in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")
