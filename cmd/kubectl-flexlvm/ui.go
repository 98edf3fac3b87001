package main

import (
	"context"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"runtime"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/flexlvm/flexlvm/internal/page"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func uiCommand(s *session) *cobra.Command {
	var port int
	var noBrowser bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show the cluster on a live page in your browser",
		Long: `ui serves a page on 127.0.0.1 until it is interrupted, and opens it in your browser. The
page shows what status, volumes and plan print, and is updated while it is open. It reads the
API with your permissions and changes nothing. Its URL contains a random token: anyone with the
URL sees what you may see.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if port < 0 || port > 65535 {
				return fmt.Errorf("--port %d: give 1 to 65535, or 0 for any free port", port)
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			l, err := page.Listen(ctx, port)
			if err != nil {
				return err
			}
			server := page.New(page.Config{Source: uiSource{watchCluster(ctx, c), c}, Title: s.cluster()})
			url := server.URL(l)
			fmt.Fprintln(cmd.OutOrStdout(), url)
			if !noBrowser {
				done, err := openBrowser(ctx, url)
				if err != nil {
					fmt.Fprintln(cmd.ErrOrStderr(), "no browser was started, so open the URL yourself:", err)
				}
				defer done()
			}
			return server.Serve(ctx, l)
		},
	}
	cmd.Flags().IntVar(&port, "port", 0, "port on 127.0.0.1; 0: any free port")
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the URL, and open no browser")
	return cmd
}

// silence keeps the libraries' logs off the terminal: commands return errors, and the page shows them.
func silence() {
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())
}

// cluster returns the name of the cluster's context, or an empty string.
func (s *session) cluster() string {
	if s.overrides.CurrentContext != "" {
		return s.overrides.CurrentContext
	}
	raw, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(s.rules, &s.overrides).RawConfig()
	if err != nil {
		return ""
	}
	return raw.CurrentContext
}

// A uiSource is the page's view of the cluster.
type uiSource struct {
	*clusterWatch
	client client.Client
}

func (u uiSource) Pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	return pods(ctx, u.client, namespace)
}

func (u uiSource) Spec(ctx context.Context, size, name string) (volume.Spec, error) {
	class, err := storageClass(ctx, u.client, name)
	if err != nil {
		return volume.Spec{}, err
	}
	return specOf(size, class)
}

// openBrowser opens the page through a file that redirects to it, because the URL contains the token and other
// users of the machine can see the arguments of programs. done removes the file.
func openBrowser(ctx context.Context, url string) (done func(), err error) {
	dir, err := os.MkdirTemp("", "kubectl-flexlvm-")
	if err != nil {
		return func() {}, err
	}
	done = func() { _ = os.RemoveAll(dir) } // best effort: the token is no longer valid
	file := filepath.Join(dir, "open.html")
	content := `<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=` + html.EscapeString(url) + `"><title>flexlvm</title>`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		return done, err
	}
	opener := map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if opener == nil {
		opener = []string{"xdg-open"}
	}
	run := exec.New()
	if _, err := run.LookPath(opener[0]); err != nil {
		return done, fmt.Errorf("find %s: %w", opener[0], err)
	}
	return done, run.CommandContext(ctx, opener[0], append(opener[1:], file)...).Start()
}
