package main

import (
	"fmt"
	"path/filepath"

	"github.com/flexlvm/flexlvm/internal/kube"
)

// podDirs returns the directories of the pod from which the daemon reads files after it has entered the host's
// namespaces: that of the service account, and those of the certificate, if there is one.
func (o *options) podDirs() []string {
	dirs := []string{kube.ServiceAccountDir}
	if o.http.CertFile != "" {
		dirs = append(dirs, filepath.Dir(o.http.CertFile), filepath.Dir(o.http.KeyFile))
	}
	return dirs
}

// fromHost returns the path of the service account's directory in the host's namespaces, and changes the paths of
// the certificate to those. seen are the paths of podDirs there; "" stands for one that does not exist.
func (o *options) fromHost(seen []string) (account string, err error) {
	if o.http.CertFile == "" {
		return seen[0], nil
	}
	if o.http.CertFile, err = fileIn(seen[1], "--metrics-tls-cert-file", o.http.CertFile); err != nil {
		return "", err
	}
	o.http.KeyFile, err = fileIn(seen[2], "--metrics-tls-key-file", o.http.KeyFile)
	return seen[0], err
}

// fileIn returns the path of a flag's file in a directory that has another path in the pod.
func fileIn(dir, flag, file string) (string, error) {
	if dir == "" {
		return "", fmt.Errorf("%s is %s, and the pod has no directory %s; mount the Secret there", flag, file, filepath.Dir(file))
	}
	return filepath.Join(dir, filepath.Base(file)), nil
}
