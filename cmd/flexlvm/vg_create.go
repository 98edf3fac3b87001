package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type vgCreateOptions struct {
	global       *global
	name         string
	metadataSize string
	thin         bool
	thinPool     string
	thinSize     string
	dryRun       bool
	loop         vgLoopOptions
}

func newVGCreate(g *global) *cobra.Command {
	o := vgCreateOptions{global: g}
	cmd := &cobra.Command{
		Use:   "create DEVICE...",
		Short: "Create a volume group on blank devices",
		Long: `Create a volume group on blank block devices: without a file system, RAID, LVM or
partition table, and neither partitioned, mounted, used as swap nor opened by any
process. A device is refused if any of this cannot be determined, and LVM, which
checks the devices again, is not allowed to overwrite anything.

The metadata area is larger than LVM's default, which has room for about 500 volumes
and cannot be enlarged later.

With --thin, it also creates a thin pool in the new group, for classes with layout
thin: of all space that the pool's metadata leaves, or of --thin-size. When the pool
is full, writes fail immediately; see docs/limitations.md before you overprovision it.

With --loop, it creates the group on a loop device over a sparse file, for trials and
tests only, which you confirm with --for-tests. An existing file is never
overwritten. After a boot, the node daemon or the same command attaches the file.`,
		Example: `  flexlvm vg create --dry-run /dev/nvme1n1
  flexlvm vg create /dev/nvme1n1 /dev/nvme2n1
  flexlvm vg create --name fast --metadata-size 64MiB /dev/disk/by-id/nvme-X
  flexlvm vg create --thin --thin-size 800GiB /dev/nvme1n1
  flexlvm vg create --loop /var/lib/flexlvm-loop.img --size 10Gi --for-tests`,
		Args: cobra.ArbitraryArgs,
		RunE: o.run,
	}
	cmd.Flags().StringVar(&o.name, "name", string(volume.DefaultGroup), "name of the group")
	cmd.Flags().StringVar(&o.metadataSize, "metadata-size", "16MiB", "size of LVM's metadata area, at least 16MiB")
	cmd.Flags().BoolVar(&o.thin, "thin", false, "create a thin pool in the group")
	cmd.Flags().StringVar(&o.thinPool, "thin-pool", lvm.DefaultThinPool, "name of the thin pool")
	cmd.Flags().StringVar(&o.thinSize, "thin-size", "", "size of the thin pool's data (default: all space that is left)")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "check everything, and only print what would be run")
	o.loop.flags(cmd)
	return cmd
}

func (o *vgCreateOptions) run(cmd *cobra.Command, devices []string) error {
	if o.loop.file != "" {
		return o.makeLoop(cmd, devices)
	}
	if o.loop.size != "" || o.loop.forTests {
		return &volume.FieldError{Field: "--loop", Reason: "is missing: --size and --for-tests apply only with --loop"}
	}
	n, err := o.group(devices)
	if err != nil {
		return err
	}
	pool, err := o.pool(n.Name)
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(cmd)
	defer cancel()
	client := lvm.New(command.New("", o.global.logger(cmd.ErrOrStderr())).Unkillable, lock.Dir(node.DefaultLockDir))
	out := cmd.OutOrStdout()
	if o.dryRun {
		if err := client.CheckNewGroup(ctx, n); err != nil {
			return adviseRoot(err)
		}
		_, err := fmt.Fprintf(out, "would run: %s\n%s", shellLine(n.Argv()), o.plan(pool))
		return err
	}
	g, err := client.CreateGroup(ctx, n)
	if err != nil {
		return adviseRoot(err)
	}
	if err := printGroup(out, g); err != nil {
		return err
	}
	if o.thin {
		p, err := client.CreateThinPool(ctx, pool)
		if err != nil {
			return fmt.Errorf("the volume group was created, but not its thin pool: %w; to start over, run `%s`", adviseRoot(err), startOver(g.Name, devices))
		}
		if err := printThinPool(out, p); err != nil {
			return err
		}
	}
	// Best effort, because the group exists in any case: otherwise it is reported within a minute.
	_ = node.WakeDaemon(node.DefaultStateDir)
	return nil
}

// startOver returns the command after which the devices of a new, empty group are blank again.
func startOver(g volume.Group, devices []string) string {
	return fmt.Sprintf("vgremove %s && %s", g, shellLine(append([]string{"pvremove"}, devices...)))
}

func (o *vgCreateOptions) group(devices []string) (lvm.NewGroup, error) {
	name, err := volume.ParseGroup("--name", o.name)
	if err != nil {
		return lvm.NewGroup{}, err
	}
	metadata, err := parseSize("--metadata-size", o.metadataSize)
	if err != nil {
		return lvm.NewGroup{}, err
	}
	n := lvm.NewGroup{Name: name, Devices: devices, MetadataSize: metadata}
	return n, n.Validate()
}

// pool returns the requested thin pool, or the zero value without --thin.
func (o *vgCreateOptions) pool(g volume.Group) (p lvm.NewThinPool, err error) {
	if !o.thin {
		if o.thinSize != "" || o.thinPool != lvm.DefaultThinPool {
			return p, &volume.FieldError{Field: "--thin", Reason: "is missing: --thin-pool and --thin-size apply only with --thin"}
		}
		return p, nil
	}
	p.Group = g
	if p.Name, err = volume.ParseThinPool("--thin-pool", o.thinPool); err != nil {
		return p, err
	}
	if o.thinSize == "" {
		return p, nil
	}
	if p.Size, err = parseSize("--thin-size", o.thinSize); err == nil && p.Size == 0 {
		err = &volume.FieldError{Field: "--thin-size", Value: o.thinSize, Reason: "must be greater than 0; leave it out for all space that is left"}
	}
	return p, err
}

// plan returns the second step, which a dry run cannot check, because the free space is only known once the
// group exists.
func (o *vgCreateOptions) plan(p lvm.NewThinPool) string {
	if !o.thin {
		return ""
	}
	size := "all space that its metadata leaves"
	if p.Size > 0 {
		size = p.Size.String()
	}
	return fmt.Sprintf("would then create thin pool %s of %s\n", volume.PoolOf(p.Group, p.Name), size)
}

func printThinPool(w io.Writer, p lvm.ThinPool) error {
	_, err := fmt.Fprintf(w, "created thin pool %s: %s in chunks of %s, metadata %s\n", p.Path(), p.Size, p.Chunk, p.Metadata)
	return err
}

func printGroup(w io.Writer, g lvm.VolumeGroup) error {
	_, err := fmt.Fprintf(w, "created volume group %s: %s on %s, metadata area %s, UUID %s\n", g.Name, g.Size, volume.Pluralize(g.Devices, "device", "devices"), g.MetadataSize, g.UUID)
	return err
}

// parseSize parses a size in bytes or with a binary unit (16MiB, 16Mi, 16M and 16m are the same, as for LVM).
func parseSize(field, s string) (volume.Bytes, error) {
	number := strings.TrimRight(s, "KMGTkmgtiBb")
	unit := strings.ToUpper(s[len(number):])
	factor, known := map[string]volume.Bytes{
		"": 1, "B": 1,
		"K": volume.KiB, "KI": volume.KiB, "KIB": volume.KiB,
		"M": volume.MiB, "MI": volume.MiB, "MIB": volume.MiB,
		"G": volume.GiB, "GI": volume.GiB, "GIB": volume.GiB,
		"T": volume.TiB, "TI": volume.TiB, "TIB": volume.TiB,
	}[unit]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || !known {
		return 0, &volume.FieldError{Field: field, Value: s, Reason: "is not a size; give a whole number with KiB, MiB, GiB or TiB, such as 64MiB"}
	}
	if n > int64(volume.MaxSize/factor) {
		return 0, &volume.FieldError{Field: field, Value: s, Reason: "is too large"}
	}
	return volume.Bytes(n) * factor, nil
}

// shellLine returns the command line, quoted for a shell.
func shellLine(argv []string) string {
	words := make([]string, 0, len(argv))
	for _, a := range argv {
		if a == "" || strings.IndexFunc(a, special) >= 0 {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// special reports whether a shell may interpret r as something other than the character itself.
func special(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("/._+:=@%-", r)
}

// adviseRoot adds the most frequent cause to an error: missing root privileges.
func adviseRoot(err error) error {
	if os.Geteuid() == 0 {
		return err
	}
	return fmt.Errorf("%w (LVM needs root privileges; run the command as root)", err)
}
