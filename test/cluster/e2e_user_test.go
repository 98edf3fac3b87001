//go:build cluster

package cluster_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/browser"
)

// The page of kubectl flexlvm ui shows what happens in a cluster while somebody looks: a
// dataset that fills, a claim that is deleted. It finds a claim, says where another would fit,
// and can be read on every screen. The pictures in docs/ are of this test.
func TestPage(t *testing.T) {
	t.Parallel()
	l := newLibrary(t, "page")
	l.bucket("page", slices.Repeat([]int{mib}, 60)...)
	l.run(claim("orders", "3Gi"), pod{name: "shop", claim: "orders", node: "node1"}.manifest(),
		claim("archive", "2Gi"), pod{name: "old", claim: "archive", node: "node1"}.manifest())
	archive := l.kubectl("get", "pvc", "archive", "-o", "jsonpath={.spec.volumeName}")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, shared.OutsideKubeconfig(t.Context(), kubeconfig))
	url := browser.Serve(t, kubeconfig)

	w := browser.Open(t)
	w.Visit(url + "?node=node1#node")
	w.Until("Live")
	w.Until("Released on node1")
	browser.Eval[int](w, "window.loads = 1") // gone if the page is loaded again
	l.kubectl("delete", "pod/old", "pvc/archive")
	w.Until(archive)
	require.NoError(t, l.apply(l.dataset("books", "S3", "page", 2, "bandwidth: 512Ki")))
	w.Until(`page/books/data filling`)
	w.Until(`node[12]: Loading [1-9]\d* %`)
	require.Equal(t, 1, browser.Eval[int](w, "window.loads"))
	w.CheckScreens()
	roles := w.CheckAccessible()
	require.GreaterOrEqual(t, roles["img"]+roles["image"], 7, "the cluster's and those of three pools of each node: %v", roles)
	require.Positive(t, roles["progressbar"], "%v", roles)
	w.CheckKeyboard()

	for _, p := range []struct{ name, query string }{{"light", "?claim=12Gi&class=flexlvm&nodes=2"}, {"dark", ""}, {"phone", ""}} {
		w.Visit(url + p.query)
		w.Until("Live")
		w.Show(browser.Screens[p.name])
		w.Picture("page-" + p.name + ".png")
	}
	w.Show(browser.Screens["light"])
	t.Log(w.Memory())

	// As with the keyboard alone.
	w.Visit(url)
	browser.Eval[bool](w, `document.getElementById("q").focus(), true`)
	w.Type("orders\r")
	w.Until("(?s)page/orders.*node1.*shop")
	require.Contains(t, browser.Eval[string](w, "location.hash"), "found")
	browser.Eval[bool](w, `document.getElementById("claim").focus(), true`)
	w.Type("100Gi\r")
	w.Until(`A claim of 100 GiB of class flexlvm fits on 0 of 2 nodes\.`)
	w.Until("has no room for it")
	require.Empty(t, w.Complaints(), strings.Join(w.Complaints(), "\n"))
}
