package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLeanBinary checks that the program links no gRPC client, no HTTP server or client, and nothing
// that makes the linker keep every method of every type. Each would add megabytes, and nearly all of
// the program is resident on every node.
func TestLeanBinary(t *testing.T) {
	const tag = "grpcnotrace"
	released, err := os.ReadFile("../../tools/release/programs.go")
	require.NoError(t, err)
	require.Contains(t, string(released), `tags = "`+tag+`"`, "what is released is built as this test's program")
	program := filepath.Join(t.TempDir(), "csi")
	build := exec.Command("go", "build", "-trimpath", "-tags", tag, "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	b, err := os.ReadFile(program)
	require.NoError(t, err)
	links := func(name string) bool { return bytes.Contains(b, []byte("\x00"+name)) }
	require.True(t, links("google.golang.org/grpc.(*Server).Serve"), "the binary holds no names, so this test finds none")
	for _, heavy := range []string{
		"google.golang.org/grpc.NewClient", "net/http.(*Server)", "net/http.(*Transport)", "golang.org/x/net/trace.", "text/template.(*state)",
	} {
		require.False(t, links(heavy), heavy)
	}
}
