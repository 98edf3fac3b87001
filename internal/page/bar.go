package page

import (
	"fmt"
	"strings"

	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// barWidth is how many units a bar is wide. It is drawn as wide as there is room.
const barWidth = 1000

// A bar shows what a pool is made of.
type bar struct {
	Label string // for who cannot see it
	Parts []part
}

// A part of a bar, of a class that the style sheet colours.
type part struct {
	Class    string
	X, Width int64
}

// barOf draws what is promised where it will be taken from: from what is free, and what
// exceeds that from what is reclaimable. The label has the figures as they are.
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
			width = max(width, 1) // a little is not nothing
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
	return fmt.Sprintf("%d %%", overview.Percent(part, whole))
}
