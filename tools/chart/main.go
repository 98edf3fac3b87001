// Command chart generates the Helm chart from the manifests in installer/: every object that kustomize builds, with
// values where clusters differ. A new manifest, workload or flag needs no change here.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func main() {
	var installer, to string
	cmd := &cobra.Command{
		Use:           "chart",
		Short:         "Write the generated files of charts/flexlvm",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return generate(installer, to) },
	}
	cmd.Flags().StringVar(&installer, "installer", "installer", "the folder of the manifests")
	cmd.Flags().StringVar(&to, "to", "charts/flexlvm", "the folder of the chart")
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// generated is the folder of the generated templates. The files beside it are written by hand.
const generated = "templates/generated"

func generate(installer, to string) error {
	in, err := readManifests(installer)
	if err != nil {
		return err
	}
	c, err := newChart(in)
	if err != nil {
		return err
	}
	files, err := c.files()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(to, generated)); err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	for name, content := range files {
		path := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write chart: %w", err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write chart: %w", err)
		}
	}
	return nil
}
