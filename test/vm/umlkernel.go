package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// umlKernel is User-Mode Linux in the cache: linux, and the list of its built-in modules in modules/.
type umlKernel struct {
	dir     string
	key     string // of its sources
	release string
}

// errNoKernel: the cache has no kernel of User-Mode Linux.
var errNoKernel = errors.New("its kernel is not in the cache; make test builds it")

// retryFailed is how long a failure is cached, because otherwise each suite would retry.
const retryFailed = 30 * time.Minute

func locateUMLKernel() (source, dir, key string, err error) {
	if source, err = SourceDir(); err != nil {
		return "", "", "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", "", "", err
	}
	key, err = hashFiles(source, []string{"test/vm/uml"})
	return source, filepath.Join(cache, "uml-"+key), key, err
}

// cachedUMLKernel returns the kernel if the cache has it.
func cachedUMLKernel(context.Context, io.Writer) (umlKernel, error) {
	_, dir, key, err := locateUMLKernel()
	if err != nil {
		return umlKernel{}, err
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if errors.Is(err, os.ErrNotExist) {
		return umlKernel{}, errNoKernel
	} else if err != nil {
		return umlKernel{}, err
	}
	return umlKernel{dir: dir, key: key, release: strings.TrimSpace(string(release))}, nil
}

// buildUMLKernel returns the kernel. If the cache has none for this source, it first builds it, which takes root, a
// compiler, Debian's packages, and about ten minutes on two cores. It reports the build to progress.
func buildUMLKernel(ctx context.Context, progress io.Writer) (umlKernel, error) {
	source, dir, _, err := locateUMLKernel()
	if err != nil {
		return umlKernel{}, err
	}
	failed := dir + ".failed"
	if info, err := os.Stat(failed); err == nil && time.Since(info.ModTime()) < retryFailed && os.Getenv(NodesEnv) != UML {
		return umlKernel{}, fmt.Errorf("its kernel could not be built at %s, see %s", info.ModTime().Format(time.TimeOnly), failed)
	}
	onWait := func() { fmt.Fprintln(progress, "User-Mode Linux: waiting for another process that builds it") }
	err = buildOnce(ctx, dir, onWait, func(out string) error {
		var said bytes.Buffer
		output := io.MultiWriter(progress, &said)
		// First, because packages install more reliably where the machine's services are visible.
		err := runTool(ctx, output, source, nil, filepath.Join(source, "test/setup.sh"), "kernel")
		if err == nil {
			err = runScript(ctx, output, source, "test/vm/uml/build.sh", out, filepath.Join(filepath.Dir(dir), "debs"))
		}
		if err != nil && ctx.Err() == nil {
			err = errors.Join(lastLine(said.String(), err), os.WriteFile(failed, said.Bytes(), 0o644))
		}
		return err
	})
	if err != nil {
		return umlKernel{}, fmt.Errorf("build its kernel: %w", err)
	}
	if err := prune(filepath.Join(filepath.Dir(dir), "uml-*"), time.Now().Add(-unusedFor)); err != nil {
		return umlKernel{}, err
	}
	return cachedUMLKernel(ctx, progress)
}

// lastLine returns the last line of a failed tool's output, or its error if there is none.
func lastLine(said string, err error) error {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return errors.New(last)
	}
	return err
}
