package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// sizeTimeout is how long the first attempt to provision waits for the server to enforce a
	// directory's size: somewhat longer than the node daemon of a server takes.
	sizeTimeout = 4 * time.Second
	sizePoll    = 250 * time.Millisecond
)

// A room is the total size that the server reports for a directory, in units of grain.
type room struct{ total, grain volume.Bytes }

// roomOf queries the server: the client does not cache the result of this call.
func roomOf(dir *os.File) (room, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return room{}, fmt.Errorf("ask for the room of %s: %w", dir.Name(), err)
	}
	grain := st.Frsize
	if grain == 0 {
		grain = st.Bsize
	}
	return room{volume.Bytes(st.Blocks) * volume.Bytes(grain), volume.Bytes(grain)}, nil
}

// awaitSize returns nil once the server enforces the size of a new directory, if that is requested, so
// that no pod gets a volume whose size is not enforced yet. flexlvm's node daemon on the server, or the
// server's administrator, sets the limit. awaitSize waits only if the mark was just written, and
// otherwise checks once: claims for which nobody sets a limit are retried forever, and would keep the
// workers from the claims of other servers.
func (p *Provisioner) awaitSize(ctx context.Context, at place, justAsked bool) error {
	if at.size == 0 {
		return nil
	}
	deadline := p.Now()
	if justAsked {
		deadline = deadline.Add(sizeTimeout)
	}
	for {
		err := p.gate(at).do(ctx, at.volume, func(_ context.Context, root *os.Root) error { return p.checkSize(root, at) })
		if err == nil || !p.Now().Before(deadline) {
			return err
		}
		if pause.For(ctx, sizePoll) != nil {
			return err
		}
	}
}

// wholeFor returns the size of the whole export if a size is to be enforced. It fails if the requested
// size is not smaller: then it could not be observed whether there is a limit.
func (p *Provisioner) wholeFor(root *os.Root, at place) (whole room, err error) {
	if at.size == 0 {
		return whole, nil
	}
	whole, err = p.roomIn(root, ".")
	if err == nil && at.size >= whole.total {
		err = fmt.Errorf("size %s is not less than the %s that the export has in all; enlarge its file system, or claim less", at.size, whole.total)
	}
	return whole, err
}

// checkSize fails unless the server enforces a directory's size. The size of some file systems changes
// with their use (ZFS), and a directory without a limit shows all of it. So a limited directory must
// show less than the whole export does before and after.
func (p *Provisioner) checkSize(root *os.Root, at place) error {
	before, err := p.wholeFor(root, at)
	if err != nil {
		return err
	}
	has, err := p.roomIn(root, at.name)
	if err != nil {
		return err
	}
	after, err := p.wholeFor(root, at)
	if err != nil {
		return err
	}
	if has.total > at.size.RoundUp(has.grain) || has.total >= min(before.total, after.total) {
		return fmt.Errorf("directory %s is not held to its size yet: the server offers %s in it, and the claim is for %s; where the server is a node, see the flag --nfs-export of its node daemon and the events NFSSizeNotEnforced of the Node, elsewhere set a quota there (docs/jobs.md)", at.name, has.total, at.size)
	}
	return nil
}

func (p *Provisioner) roomIn(root *os.Root, name string) (r room, err error) {
	dir, err := root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return r, err
	}
	r, err = p.room(dir)
	return r, errors.Join(err, dir.Close())
}
