package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/staticconfig"
)

// translateCommand converts another system's configuration into a VolumeDiscovery and prints it. It does not
// call the API server.
func translateCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "translate -f FILE", Short: "Convert a ConfigMap of the static provisioner to a VolumeDiscovery", Args: noArguments,
		Long: `translate reads the ConfigMap of the static provisioner for local volumes
(sig-storage-local-static-provisioner) and prints an equivalent VolumeDiscovery. If a field has
no equivalent, it fails and names the field. It prints other differences as notes on stderr.
It does not contact the API server and changes nothing. docs/static.md describes the switch.`,
		Example: `  kubectl get configmap local-provisioner-config -o yaml | kubectl flexlvm translate -f - > discovery.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := readInput(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			result, err := staticconfig.Read(text)
			if err != nil {
				return err
			}
			for _, note := range result.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
			}
			out, err := yaml.Marshal(result.Discovery)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file with the ConfigMap, as YAML; - for stdin")
	return cmd
}

func readInput(stdin io.Reader, file string) ([]byte, error) {
	switch file {
	case "":
		return nil, fmt.Errorf("--filename is empty; give the file with the ConfigMap, or - for stdin")
	case "-":
		return io.ReadAll(stdin)
	}
	return os.ReadFile(file)
}
