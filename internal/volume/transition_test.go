package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var states = []State{Creating, Ready, Unreferenced, Retained, Doomed}

// Every pair of states is checked for every authority: a mistake in the table means a volume that is
// formatted or removed too early, or never.
func TestMayMove(t *testing.T) {
	want := map[Authority]string{
		// To:        creating ready unreferenced retained doomed
		ByEngine: `
			creating      .       x        .          .       .
			ready         .       .        .          .       .
			unreferenced  .       .        .          .       x
			retained      .       .        .          .       .
			doomed        .       .        .          .       .`,
		ByRelease: `
			creating      .       .        x          x       .
			ready         .       .        x          x       .
			unreferenced  .       .        .          x       .
			retained      .       .        .          .       .
			doomed        .       .        .          .       .`,
		ByPerson: `
			creating      .       .        x          .       .
			ready         .       .        x          x       .
			unreferenced  .       x        .          x       .
			retained      .       x        x          .       .
			doomed        .       .        .          .       .`,
	}
	moves := 0
	for by, table := range want {
		rows := strings.Split(strings.TrimSpace(table), "\n")
		require.Len(t, rows, len(states))
		for i, from := range states {
			cells := strings.Fields(rows[i])
			require.Equal(t, string(from), cells[0])
			for j, to := range states {
				require.Equal(t, cells[j+1] == "x", MayMove(from, to, by), "from %s to %s by %s", from, to, by)
				if cells[j+1] == "x" {
					moves++
				}
			}
		}
	}
	require.Len(t, Transitions(), moves, "none stands there twice")
}

// docs/design.md contains the table of transitions.
func TestTransitionsAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "design.md"))
	require.NoError(t, err)
	rows := ""
	for _, m := range Transitions() {
		rows += fmt.Sprintf("| `%s` | `%s` | %s | %s |\n", m.From, m.To, m.By, m.Requires)
	}
	require.Contains(t, string(text), rows)
}
