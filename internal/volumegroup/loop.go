package volumegroup

import (
	"fmt"
	"path"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Loop is a file on which a group is created instead of disks.
type Loop struct {
	File string
	Size volume.Bytes // of the device
	// ForTests confirms that a group on a file is not for data that anybody needs.
	ForTests bool
}

// Limits on the size of a loop device: room for LVM's metadata and one volume, and what ext4 and
// XFS hold in one file.
const (
	MinLoopSize = 640 * volume.MiB
	MaxLoopSize = 8192 * volume.GiB
)

// Validate checks what can be checked without access to the host; the parameters are the fields'
// names for the user. The error is a *volume.FieldError.
func (l Loop) Validate(file, size, forTests string) error {
	switch {
	case !path.IsAbs(l.File) || path.Clean(l.File) != l.File || l.File == "/":
		return &volume.FieldError{Field: file, Value: l.File, Reason: "is not the absolute path of a file, such as /var/lib/flexlvm-loop.img"}
	case l.Size < MinLoopSize || l.Size > MaxLoopSize:
		return &volume.FieldError{Field: size, Value: l.Size.String(), Reason: fmt.Sprintf("has to be %s to %s", MinLoopSize, MaxLoopSize)}
	case l.Size%volume.Block != 0:
		return &volume.FieldError{Field: size, Value: fmt.Sprint(int64(l.Size)), Reason: fmt.Sprintf("has to be a multiple of %s", volume.Block)}
	case !l.ForTests:
		return &volume.FieldError{Field: forTests, Reason: "is missing: a volume group in a file shares its disk with everything else there, and is lost with the file; set it for a trial or for tests, and use disks for data"}
	}
	return nil
}
