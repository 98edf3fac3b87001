package main

import (
	"fmt"
	"path/filepath"

	"github.com/flexlvm/flexlvm/internal/kube"
)

// podDirs returns the directories of the pod from which the daemon reads files after it has entered the host's
// namespaces: the directory of the service account, and those of the certificate and its key, if there is one.
func (o *options) podDirs() []string {
	dirs := []string{kube.ServiceAccountDir}
	if o.http.CertFile != "" {
		dirs = append(dirs, filepath.Dir(o.http.CertFile), filepath.Dir(o.http.KeyFile))
	}
	return dirs
}

// fromHost returns the path of the service account's directory in the host's namespaces, and sets the paths of the
// certificate and its key there. seen are the paths of podDirs in the host's namespaces; "" if one does not exist.
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

// fileIn returns the path of a flag's file in dir, which is the file's directory as seen from the host.
func fileIn(dir, flag, file string) (string, error) {
	if dir == "" {
		return "", fmt.Errorf("%s is %s, and the pod has no directory %s; mount the Secret there", flag, file, filepath.Dir(file))
	}
	return filepath.Join(dir, filepath.Base(file)), nil
}
