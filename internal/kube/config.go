// Package kube is flexlvm's access to the API server. Its Client is for the node daemon, which runs on
// every node and so has to be small: unlike client-go's clientset, it knows only the few kinds that the
// daemon needs.
package kube

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ServiceAccountDir is where a pod's token and the API server's CA certificate are mounted.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Config returns the client configuration for the API server: from the kubeconfig file or, if that is
// empty, for the service account whose files are in dir. The token is reread regularly, because it
// changes while the pod runs.
func Config(kubeconfig, dir string) (*rest.Config, error) {
	if kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read --kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := inCluster(dir)
	if err != nil {
		return nil, fmt.Errorf("find the API server (outside a cluster give --kubeconfig): %w", err)
	}
	return config, nil
}

func inCluster(dir string) (*rest.Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as they are in a pod")
	}
	tokenFile, authorityFile := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("read the token of the pod's service account: %w", err)
	}
	if _, err := os.Stat(authorityFile); err != nil {
		return nil, fmt.Errorf("look for the certificate of the API server's authority: %w", err)
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(host, port),
		TLSClientConfig: rest.TLSClientConfig{CAFile: authorityFile},
		BearerToken:     strings.TrimSpace(string(token)),
		BearerTokenFile: tokenFile,
	}, nil
}
