package browser

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/stretchr/testify/require"
)

// The minimum contrast ratio between text and background (WCAG 2.2, 1.4.3), and the width of a phone.
const (
	leastContrast = 4.5
	phoneWidth    = 390
)

// Screens are the screens on which the page is checked.
var Screens = map[string]Screen{
	"light": {Width: 1280, Height: 900}, "dark": {Width: 1280, Height: 900, Dark: true}, "phone": {Width: phoneWidth, Height: 844},
}

//go:embed contrast.js
var contrast string

// CheckScreens checks, on every screen, that all text is readable and that nothing is cut off.
func (w *Window) CheckScreens() {
	w.t.Helper()
	for name, screen := range Screens {
		w.Show(screen)
		require.LessOrEqual(w.t, Eval[int](w, "document.documentElement.scrollWidth"), Eval[int](w, "innerWidth"), "%s: it does not scroll sideways", name)
		require.Equal(w.t, int(screen.Width), Eval[int](w, "innerWidth"), name)
		type text struct {
			Text, Color, Ground string
			Ratio               float64
		}
		seen := Eval[[]text](w, contrast)
		require.Greater(w.t, len(seen), 30, name)
		for _, one := range seen {
			require.GreaterOrEqual(w.t, one.Ratio, leastContrast, "%s: %+v", name, one)
		}
	}
	w.Show(Screens["light"])
}

// named are the roles that mean nothing to a user of a screen reader without a name.
var named = []string{
	"image", "img", "meter", "progressbar", "searchbox", "textbox", "spinbutton", "button", "link", "table", "columnheader", "heading", "region", "navigation",
}

// CheckAccessible checks the accessibility tree that a screen reader uses. It returns the number of nodes per role.
func (w *Window) CheckAccessible() map[string]int {
	w.t.Helper()
	roles := map[string]int{}
	for _, n := range call(w, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		role := text(n.Role)
		roles[role]++
		if slices.Contains(named, role) {
			require.NotEmpty(w.t, n.Name, role)
			require.NotEmpty(w.t, text(n.Name), "a %s without a name", role)
		}
	}
	for _, landmark := range []string{"banner", "main", "search", "contentinfo", "region", "status"} {
		require.Positive(w.t, roles[landmark], "%s: %v", landmark, roles)
	}
	return roles
}

func text(v *accessibility.Value) string { return strings.Trim(string(v.Value), `"`) }

// CheckKeyboard checks that Tab reaches every field in visual order, and that the focus is visible.
func (w *Window) CheckKeyboard() {
	w.t.Helper()
	const at = `document.activeElement.id || document.activeElement.className || document.activeElement.textContent`
	Eval[bool](w, `document.querySelector("a").focus(), true`) // where Tab starts depends on the URL
	reached := []string{Eval[string](w, at)}
	for len(reached) < 12 && reached[len(reached)-1] != "Plan" {
		w.Type("\t")
		reached = append(reached, Eval[string](w, at))
		require.NotEqual(w.t, "none", Eval[string](w, `getComputedStyle(document.activeElement).outlineStyle`), "%v", reached)
	}
	fields := slices.DeleteFunc(slices.Clone(reached), func(id string) bool { return !slices.Contains([]string{"q", "claim", "class", "count"}, id) })
	require.Equal(w.t, []string{"q", "claim", "class", "count"}, fields, "%v", reached)
	require.Equal(w.t, "skip", reached[0])
	require.Contains(w.t, reached, "Find")
	require.Contains(w.t, reached, "Plan")
}
