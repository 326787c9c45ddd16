// Package e2e shows the product as its users meet it: real processes of the real binary, real SDKs, faults on purpose.
//
// What may enter is a test of something that a user, an operator or an attacker can see from outside. Nothing here
// reaches into a package; what can be shown by one package alone stands beside that package.
package e2e
