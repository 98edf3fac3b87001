package mount

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// maxLines bounds the total size of the lines that linesOf returns, in bytes.
const maxLines = 64 << 20

// linesOf returns the lines of a mountinfo file (man 5 proc_pid_mountinfo) whose file system is on this
// device. A tenant can create lines of any length, for example by a mount at a very long path. So lines of
// other devices are not buffered. A line of this device is never skipped, because it may be the mount that
// the caller needs.
func linesOf(mountinfo io.Reader, number uint64) (lines []string, err error) {
	device := fmt.Sprintf("%d:%d", unix.Major(number), unix.Minor(number))
	kept := 0
	for r := bufio.NewReader(mountinfo); ; {
		line, err := readLine(r, device, maxLines-kept)
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
		if line != "" {
			kept += len(line)
			lines = append(lines, line)
		}
	}
}

// readLine reads a line, and returns "" if the line is of another device. It fails if a line of this
// device has more than maxLen bytes. The error is io.EOF at the end of the file.
func readLine(r *bufio.Reader, device string, maxLen int) (string, error) {
	var line strings.Builder
	wanted := false
	for first := true; ; first = false {
		part, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && (!first || len(part) > 0):
			return "", io.ErrUnexpectedEOF
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
		if first {
			fields := strings.SplitN(string(part), " ", 4)
			if len(fields) < 4 {
				return "", fmt.Errorf("the line %.100q names no device", part)
			}
			wanted = fields[2] == device
		}
		if wanted {
			if line.Write(part); line.Len() > maxLen {
				return "", fmt.Errorf("the mounts of device %s take more than %d bytes; unmount some", device, maxLines)
			}
		}
		if err == nil {
			return strings.TrimSuffix(line.String(), "\n"), nil
		}
	}
}

// parseLine parses a line of a mountinfo file for a mount on the device with this number.
func parseLine(line string, number uint64) (Point, error) {
	i, err := mountinfo.Parse(line)
	if err != nil {
		return Point{}, err
	}
	return Point{Path: i.Mountpoint, Type: i.FSType, Source: i.Source, Number: number, Root: i.Root, ReadOnly: isReadOnly(i)}, nil
}
