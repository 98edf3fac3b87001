package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// DefaultThinPool is the default name of a thin pool.
const DefaultThinPool = "thinpool"

// Parameters of a thin pool. Its metadata takes 64 bytes for each chunk that it maps (lvmthin(7)).
// The chunk is the smallest that LVM allows as long as the metadata stays within maxThinMetadata,
// which keeps its check at every boot short.
const (
	minThinChunk    = 64 * volume.KiB
	thinMapping     = 64 // bytes
	minThinMetadata = 64 * volume.MiB
	maxThinMetadata = volume.GiB
)

// ErrPoolExists: the group already holds a logical volume of the thin pool's name.
var ErrPoolExists = errors.New("thin pool exists")

// A NewThinPool describes a thin pool to create in a group.
type NewThinPool struct {
	Group volume.Group
	Name  volume.Name
	Size  volume.Bytes // of its data; 0: what the metadata leaves of the group
}

// A thinPlan is what a new thin pool takes from its group: size, and metadata twice, because LVM
// keeps as much in reserve for repairs.
type thinPlan struct {
	size, metadata, chunk volume.Bytes
}

// plan sizes the pool for the free space of its group. It is pure.
func (n NewThinPool) plan(free, extent volume.Bytes) (thinPlan, error) {
	free -= free % grainOf(extent)
	p := thinPlan{size: n.Size.RoundUp(grainOf(extent)), chunk: minThinChunk}
	if n.Size == 0 {
		p.size = free
	}
	for p.size/p.chunk*thinMapping > maxThinMetadata {
		p.chunk *= 2
	}
	p.metadata = max((p.size / p.chunk * thinMapping).RoundUp(grainOf(extent)), minThinMetadata.RoundUp(grainOf(extent)))
	if n.Size == 0 {
		p.size = free - 2*p.metadata
	}
	if need := max(p.size, minPool) + 2*p.metadata; need > free {
		return p, fmt.Errorf("%w: thin pool %s/%s needs %d bytes (%s), twice its metadata included, and the group has %d free (%s)",
			ErrNoSpace, n.Group, n.Name, int64(need), need, int64(free), free)
	}
	return p, nil
}

func grainOf(extent volume.Bytes) volume.Bytes { return max(extent, volume.DefaultExtent) }

// argv returns the command that creates the pool. A full pool must return errors immediately
// instead of blocking writers, no pod may read what another tenant has left in a chunk, and the
// space of deleted data must be freed. --thin means the same as --type thin-pool, with which LVM
// (2.03.16) rejects --errorwhenfull.
func (n NewThinPool) argv(p thinPlan) []string {
	argv := []string{
		"lvcreate", "--yes", "--thin", "--size", bytesArg(p.size),
		"--poolmetadatasize", bytesArg(p.metadata), "--poolmetadataspare", "y", "--chunksize", bytesArg(p.chunk),
		"--zero", "y", "--errorwhenfull", "y", "--discards", "passdown",
	}
	for _, t := range volume.PoolTags() {
		argv = append(argv, "--addtag", t)
	}
	return append(argv, "--thinpool", string(n.Name), "--", string(n.Group))
}

// CreateThinPool creates a thin pool. Killed at any instant, it leaves nothing, or the pool with
// its tags; if LVM could not finish the pool, the next call fails (ErrPoolExists).
func (c *Client) CreateThinPool(ctx context.Context, n NewThinPool) (ThinPool, error) {
	g, err := c.Group(ctx, n.Group)
	if err != nil {
		return ThinPool{}, err
	}
	p, err := n.plan(g.Free, g.Extent)
	if err != nil {
		return ThinPool{}, err
	}
	switch _, err := c.Volume(ctx, n.Group, n.Name); {
	case err == nil:
		return ThinPool{}, fmt.Errorf("%w: %s/%s; choose another name", ErrPoolExists, n.Group, n.Name)
	case !errors.Is(err, ErrNoVolume):
		return ThinPool{}, err
	}
	argv := n.argv(p)
	if _, err := c.lvm(ctx, argv[0], argv[1:]...); err != nil {
		return ThinPool{}, fmt.Errorf("create thin pool %s/%s: %w; see what is there with `lvs -a %s`, remove what is incomplete, and create it yourself with `%s`", n.Group, n.Name, err, n.Group, strings.Join(argv, " "))
	}
	// The creation is recorded, on another disk, and is not repeated.
	if err := c.Flush(ctx, n.Group, n.Name); err != nil {
		return ThinPool{}, err
	}
	pool, err := c.ThinPool(ctx, n.Group, n.Name)
	if err != nil {
		return ThinPool{}, err
	}
	return pool, pool.unfit()
}

// A ThinPool is what LVM reports about a thin pool that has flexlvm's tags.
type ThinPool struct {
	Group     volume.Group
	GroupUUID string
	Name      volume.Name
	UUID      string
	Extent    volume.Bytes // of its group
	Size      volume.Bytes // of its data
	Used      volume.Bytes // of its data; Size if LVM does not report it
	Metadata  volume.Bytes // size of its metadata
	// MetadataUsed is the used part of Metadata; all of it if LVM does not report it.
	MetadataUsed  volume.Bytes
	Chunk         volume.Bytes
	Volumes       int // in it, flexlvm's or not
	Others        Others
	Active        bool // if not, LVM does not report how full it is
	ErrorWhenFull bool
	Zero          bool   // chunks are zeroed before they can be read
	Health        string // the problem that LVM reports; empty for none
}

// Others are the volumes in a thin pool that do not carry flexlvm's tag.
type Others struct {
	Data       volume.Bytes // what they hold, as far as LVM reports it
	Unreported volume.Bytes // the size of those for which LVM does not report it
}

// countOthers drops the volumes without flexlvm's tag, and counts what they hold in flexlvm's
// pools.
func countOthers(pools []ThinPool, all []LogicalVolume) []LogicalVolume {
	return slices.DeleteFunc(all, func(lv LogicalVolume) bool {
		if slices.Contains(lv.Tags, volume.TagOwned) {
			return false
		}
		for i := range pools {
			switch p := &pools[i]; {
			case p.GroupUUID != lv.GroupUUID || p.Name != lv.Shape.ThinPool:
			case lv.Active:
				p.Others.Data += lv.Data
			default:
				p.Others.Unreported += lv.Size
			}
		}
		return true
	})
}

// Path returns the pool's name for LVM's programs, and for people.
func (p ThinPool) Path() string { return string(volume.PoolOf(p.Group, p.Name)) }

// Takes returns what the pool takes from its group, without the spare metadata that pools share.
func (p ThinPool) Takes() volume.Bytes { return p.Size + p.Metadata }

// unfit returns Unfit as an error, or nil.
func (p ThinPool) unfit() error {
	if why := p.Unfit(); why != "" {
		return fmt.Errorf("thin pool %s: %s", p.Path(), why)
	}
	return nil
}

// Unfit returns why no volume may be created in the pool, however much room it has, and what to do
// about it; empty if one may.
func (p ThinPool) Unfit() string {
	switch {
	case p.Health != "":
		return fmt.Sprintf("LVM says %q of it; see `lvs -a -o +lv_health_status %s`, and lvmthin(7) on data space exhaustion and metadata check and repair", p.Health, p.Path())
	case !p.Active:
		return fmt.Sprintf("it is not active, so its usage is unknown; run `lvchange --activate y %s`", p.Path())
	case !p.ErrorWhenFull:
		return fmt.Sprintf("it would keep writers waiting when it is full, and pods with them; run `lvchange --errorwhenfull y %s`", p.Path())
	case !p.Zero:
		return fmt.Sprintf("it does not zero its chunks, so pods could read what others have deleted; run `lvchange --zero y %s`", p.Path())
	}
	return ""
}

// errPool: the thin pool of a volume is missing, full or not in order.
var errPool = errors.New("thin pool")

// fitPool fails unless the pool of a thin volume is flexlvm's, in order, and has this much free.
// The provisioner accounts for what pods are promised; fitPool only keeps a volume from being
// created or grown where it could not be written.
func (c *Client) fitPool(ctx context.Context, lv LogicalVolume, need volume.Bytes) error {
	p, err := c.activePool(ctx, lv.Group, lv.Shape.ThinPool)
	if err != nil {
		return fmt.Errorf("%w of volume %s: %w", errPool, lv.path(), err)
	}
	// First, because LVM reports a full pool as unhealthy.
	if free := p.Size - p.Used; p.Active && (free < need || p.MetadataUsed >= p.Metadata) {
		return fmt.Errorf("%w of volume %s: %w: %s has %d bytes free (%s) of %d and %d are needed (%s); its metadata is %d%% full; delete claims that nobody needs (never logical volumes by hand), or extend it with `lvextend --size` and `lvextend --poolmetadatasize`",
			errPool, lv.path(), ErrNoSpace, p.Path(), int64(free), free, int64(p.Size), int64(need), need, int64(p.MetadataUsed*100/max(p.Metadata, 1)))
	}
	if err := p.unfit(); err != nil {
		return fmt.Errorf("%w of volume %s: %w", errPool, lv.path(), err)
	}
	return nil
}

// CheckRoom fails unless a thin volume could be created with, or grown to, this size now, or
// copied.
func (c *Client) CheckRoom(ctx context.Context, lv LogicalVolume, size volume.Bytes) error {
	return c.fitPool(ctx, lv, max(size-lv.Size, 1))
}

// activePool is ThinPool, after an attempt to activate the pool if necessary: after a boot the pool
// may be inactive, and then LVM does not report how full it is.
func (c *Client) activePool(ctx context.Context, g volume.Group, n volume.Name) (ThinPool, error) {
	p, err := c.ThinPool(ctx, g, n)
	if err != nil || p.Active {
		return p, err
	}
	if _, err := c.lvm(ctx, "lvchange", "--yes", "--activate", "y", "--", p.Path()); err != nil {
		return ThinPool{}, fmt.Errorf("activate thin pool %s: %w", p.Path(), err)
	}
	return c.ThinPool(ctx, g, n)
}

// ErrNoPool: the group has no such thin pool, or the pool does not have flexlvm's tags.
var ErrNoPool = errors.New("thin pool not found")

// ThinPool returns one flexlvm thin pool, or ErrNoPool.
func (c *Client) ThinPool(ctx context.Context, g volume.Group, n volume.Name) (ThinPool, error) {
	out, err := c.lvm(ctx, "lvs", volumeArgs(g, n)...)
	if err != nil {
		return ThinPool{}, c.explainLookup(ctx, g, err)
	}
	all, err := parseThinPools(out)
	if err != nil {
		return ThinPool{}, fmt.Errorf("look up thin pool %s/%s: %w", g, n, err)
	}
	if len(all) == 0 {
		return ThinPool{}, fmt.Errorf("%w: group %s has none of the name %s that carries the tags %s; make it with `flexlvm vg create --thin`, or, if it is there and meant for flexlvm, tag it with `lvchange --addtag %s %s/%s`",
			ErrNoPool, g, n, strings.Join(volume.PoolTags(), " and "), strings.Join(volume.PoolTags(), " --addtag "), g, n)
	}
	return all[0], nil
}

// ThinPools returns every flexlvm thin pool on the host.
func (c *Client) ThinPools(ctx context.Context) ([]ThinPool, error) {
	out, err := c.lvm(ctx, "lvs", volumesArgs()...)
	if err != nil {
		return nil, fmt.Errorf("list thin pools: %w", err)
	}
	return parseThinPools(out)
}

// kindPool is LVM's segment type of a thin pool, kindThin of a volume in one.
const (
	kindPool = "thin-pool"
	kindThin = "thin"
)

// parseThinPools returns flexlvm's thin pools from a report that parseVolumes parses, too.
func parseThinPools(out []byte) ([]ThinPool, error) {
	r, err := parseReport(out)
	if err != nil {
		return nil, err
	}
	var all []ThinPool
	for _, rep := range r.Report {
		segments := rep.Seg
		if segments == nil {
			segments = rep.LV
		}
		found := map[string]map[string]string{}
		for _, f := range segments {
			if f["segtype"] == kindPool {
				found[f["lv_uuid"]] = f
			}
		}
		for _, f := range rep.LV {
			segment, is := found[f["lv_uuid"]]
			if !is {
				continue
			}
			p, err := parseThinPool(f, segment)
			if err != nil {
				return nil, err
			}
			if volume.OwnedPool(strings.Split(f["lv_tags"], ",")) {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

func parseThinPool(fields, segment map[string]string) (ThinPool, error) {
	row, seg := row{fields: fields}, row{fields: segment}
	p := ThinPool{
		Group:         volume.Group(row.text("vg_name")),
		GroupUUID:     row.text("vg_uuid"),
		Name:          volume.Name(row.text("lv_name")),
		UUID:          row.text("lv_uuid"),
		Extent:        row.bytes("vg_extent_size"),
		Size:          row.bytes("lv_size"),
		Metadata:      row.bytes("lv_metadata_size"),
		ErrorWhenFull: row.field("lv_when_full") == "error",
		Health:        row.field("lv_health_status"),
		Chunk:         seg.bytes("chunk_size"),
		Volumes:       int(seg.number("thin_count")),
		Zero:          seg.field("zero") == "zero",
	}
	data, told := row.share("data_percent", p.Size)
	metadata, alsoTold := row.share("metadata_percent", p.Metadata)
	p.Used, p.MetadataUsed, p.Active = data, metadata, told && alsoTold
	return p, errors.Join(row.err, seg.err)
}
