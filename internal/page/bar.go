package page

import (
	"fmt"
	"strings"

	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// barWidth is the width of a bar in its own units. It is scaled to the available space.
const barWidth = 1000

// A bar shows how the space of a pool is used.
type bar struct {
	Label string // description for screen readers
	Parts []part
}

// A part of a bar has a class, which the style sheet colors.
type part struct {
	Class    string
	X, Width int64
}

// barOf shows promised space as a part of free space and, as far as it exceeds that, of reclaimable space. The
// label has the unadjusted figures.
func barOf(p overview.Pool) bar {
	out := bar{Label: labelOf(p)}
	if p.Size <= 0 {
		return out
	}
	free, reclaimable := max(0, p.Free), max(0, p.Reclaimable)
	promised := min(max(0, p.Promised), free+reclaimable)
	fromFree := min(promised, free)
	x := int64(0)
	for _, s := range []struct {
		class string
		size  volume.Bytes
	}{
		{"in-use", p.InUse}, {"promised", promised}, {"reclaimable", reclaimable - (promised - fromFree)}, {"free", free - fromFree},
	} {
		width := int64(float64(s.size) / float64(p.Size) * barWidth)
		if s.size > 0 {
			width = max(width, 1) // show even a small amount
		}
		width = min(width, barWidth-x)
		if width > 0 {
			out.Parts = append(out.Parts, part{s.class, x, width})
		}
		x += width
	}
	return out
}

func labelOf(p overview.Pool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s: %s in use (%s), %s promised, %s reclaimable, %s free", p.Name, p.Size, p.InUse, share(p.InUse, p.Size), p.Promised, p.Reclaimable, p.Free)
	if p.ThinData != nil {
		fmt.Fprintf(&b, ", thin data %d %%", *p.ThinData)
	}
	if p.ThinMetadata != nil {
		fmt.Fprintf(&b, ", thin metadata %d %%", *p.ThinMetadata)
	}
	return b.String()
}

func share(part, whole volume.Bytes) string {
	if whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%d %%", volume.Percent(part, whole))
}
